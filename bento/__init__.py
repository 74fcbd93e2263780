"""What leaves mlctl beside a Bento: clients, images, manifests. No server needs it to answer."""
