"""Files of other libraries: Hugging Face folders, GGUF, llama2.c, peft. Nothing here knows of runs."""
