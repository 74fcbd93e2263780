"""Classification of sounds: a transform that decodes WAV files."""
