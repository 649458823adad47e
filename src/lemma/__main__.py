"""`python -m lemma …` and `torchrun -m lemma …`: the command line."""

from lemma.cli.main import main

if __name__ == "__main__":
    main()
