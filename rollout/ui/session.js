// Exchange the token in the fragment of the address for a cookie, then load the page.
const token = location.hash.slice(1);
if (token) {
  fetch("/session", { method: "POST", headers: { authorization: `Bearer ${token}` } }).then((answer) => {
    if (answer.ok) {
      location.replace(location.pathname + location.search);
    } else {
      document.getElementById("message").textContent =
        "The token of this address is wrong or of a server that ended: run `mlctl ui` and open what it prints.";
    }
  });
}
