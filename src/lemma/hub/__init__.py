"""Files of other libraries: peft."""
