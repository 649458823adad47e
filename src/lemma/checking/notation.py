r"""The notation of papers and LaTeX, translated into the small language of gradient derivations.

`\frac{\partial J}{\partial \mathbf{v}_c} = U(\hat{y} - y)` becomes `∂J/∂v_c = U(y_hat - y)`. Every character of the
result remembers where it comes from, so that errors point into the text that was typed.
"""

import re

from lemma.errors import InputError

MAX_BRACES = 40  # depth of nested braces
EXCEPT = "EXCEPT"  # stands for ≠ in a subscript, as in u_{w≠o}
INDICATOR = "\ue001"  # stands for 𝟙, which would be folded into a 1
_WORDS = {"varepsilon": "epsilon", "varphi": "phi", "vartheta": "theta", "varsigma": "sigma", "varrho": "rho"}
_STYLES = frozenset(
    re.findall(
        r"\w+",
        "text textrm textbf textit textsf texttt mathrm mathit mathsf mathtt mathcal mathscr mathfrak operatorname "
        "mbox vec underline pmb vb va hbox",
    )
)
_ACCENTS = {"hat": "_hat", "widehat": "_hat", "tilde": "_tilde", "widetilde": "_tilde", "bar": "_bar"}
_ACCENTS |= {"overline": "_bar", "dot": "_dot"}
_SIGNS = {
    "partial": "∂", "nabla": "∇", "ell": "ℓ", "odot": "⊙", "circ": "∘", "ast": "*", "star": "*", "cdot": "·",
    "times": "×", "otimes": "⊗", "top": "⊤", "intercal": "⊤", "neq": "≠", "ne": "≠", "geq": ">", "ge": ">", "gt": ">",
    "leq": "<", "le": "<", "lt": "<", "in": "∈", "prime": "'", "div": "/", "lbrace": "(", "rbrace": ")", "{": "(",
    "}": ")", "langle": "⟨", "rangle": "⟩", "implies": " ", "Rightarrow": " ", "therefore": " ", "colon": ":",
    "lbrack": "[", "rbrack": "]", "mid": "|", "forall": " ", "infty": "∞", "ldots": "…", "dots": "…", "cdots": "…",
}  # fmt: skip
_IGNORED = frozenset(",;:!>()[] \n") | frozenset(
    re.findall(
        r"\w+",
        "left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr displaystyle textstyle limits nolimits "
        "quad qquad nonumber notag hfill rm bf it cal space phantom",
    )
)
_RAISED = dict(zip("⁰¹⁴⁵⁶⁷⁸⁹⁻⁺", "01456789-+", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉ₐₑₒₓₕₖₗₘₙₚₛₜᵢⱼᵣᵤᵥ₋₊", "0123456789aeoxhklmnpstijruv-+", strict=True))
_TRANSPOSE = re.compile(r"\s*(?:T|⊤|tr|t?transpose)\s*")
_LAYER = re.compile(r"\s*[\[(<⟨]\s*([A-Za-z0-9]{1,3}|[A-Za-z]\s*[-+−]\s*1)\s*[\])>⟩]\s*")
_NUMERATOR = re.compile(r"\s*(?:∂|d(?=\s*[^\W\d]))\s*\S.*")
_DENOMINATOR = re.compile(r"\s*(?:∂|d)\s*\S.*")
_SUBSCRIPT_NEIGHBOUR = {"t-1": "prev", "t+1": "next", "i-1": "prev", "i+1": "next"}

Characters = list[tuple[str, int]]  # each with its position in the original text


def translate_notation(text: str) -> tuple[str, list[int]]:
    r"""Translate a line; return it and the original position of each character, with one more for the end.

    >>> translate_notation(r"\frac{\partial J}{\partial \mathbf{v}_c} = \mathbf{U}(\hat{y} - y)^\top")[0]
    '∂ J/∂ v_c  = U(y_hat - y).T'
    >>> translate_notation(r"dW^{(1)} = x_{t-1} \left(\delta^{2}\right), h^{T}Wx")[0]
    'dW_1 = x_prev (delta^(2)), h.T Wx'
    >>> translate_notation(r"\sum_{w=1}^{V} \hat y_w u_w - \frac{1}{n} e^{z}")[0]
    '∑{w} y_hat_w u_w - ((1)/(n)) e^(z)'
    """
    characters = _Translator(text).translate()
    return "".join(character for character, _ in characters), [position for _, position in characters] + [len(text)]


class _Translator:
    """A scanner that translates a text from left to right; `out` holds what is translated so far."""

    def __init__(self, text: str, start: int = 0, stop: int | None = None, depth: int = 0) -> None:
        self.text, self.position, self.stop = text, start, len(text) if stop is None else stop
        self.depth = depth
        self.out: Characters = []
        self.is_latex = "\\" in text
        self.cases = self.matrices = 0

    def translate(self) -> Characters:
        """Translate up to `stop`; return the characters."""
        if self.depth > MAX_BRACES:
            raise InputError(f"braces are nested more than {MAX_BRACES} deep.")
        while self.position < self.stop:
            self.step()
        return self.out

    def emit(self, text: str, position: int, is_word: bool = False) -> None:
        """Append characters that stand for the one at `position`; a word is kept apart from letters before it."""
        if is_word and text and self.out and text[0] != "_":
            tail = "".join(character for character, _ in self.out[-2:])
            is_prefix = re.fullmatch(r"(?:.*[^\w]|^)[d∂]", tail, re.DOTALL)
            if (tail[-1].isalnum() or tail[-1] in "\u0302\u0303") and not is_prefix:
                self.out.append((" ", position))
        self.out += [(character, position) for character in text]

    def end_word(self) -> None:
        """Keep a word apart from a letter right after it."""
        following = self.text[self.position : self.position + 1]
        if following.isalpha() and self.position < self.stop:
            self.out.append((" ", self.position))

    def group(self) -> Characters:
        """Translate the argument of a command: what is in braces, a command, or one character."""
        while self.position < self.stop and self.text[self.position].isspace():
            self.position += 1
        if self.position >= self.stop:
            return []
        start = self.position
        if self.text[start] == "{":
            end = self.closing_brace(start)
            self.position = min(end + 1, self.stop)
            return _Translator(self.text, start + 1, end, self.depth + 1).translate()
        inner = _Translator(self.text, start, self.stop, self.depth + 1)
        if inner.depth > MAX_BRACES:
            raise InputError(f"braces are nested more than {MAX_BRACES} deep.")
        if self.text[start] == "\\":
            inner.step()
        else:
            inner.out.append((self.text[start], start))
            inner.position += 1
        self.position = inner.position
        return inner.out

    def closing_brace(self, start: int) -> int:
        """Return the position of the brace that closes the one at `start`, or the end of the text."""
        depth = 0
        for index in range(start, self.stop):
            if self.text[index] == "{" and self.text[index - 1 : index] != "\\":
                depth += 1
            elif self.text[index] == "}" and self.text[index - 1 : index] != "\\":
                depth -= 1
                if depth == 0:
                    return index
        return self.stop

    def step(self) -> None:
        """Translate what begins at the current position: a command, a script, or one character."""
        start, character = self.position, self.text[self.position]
        if character == "\\":
            return self.command()
        self.position += 1
        if character == "^":
            return self.superscript(start)
        if character == "_" and self.position < self.stop and self.text[self.position] in "{\\":
            return self.subscript(start)
        if character in ("∑", "Σ") and (character == "∑" or self.text[self.position : self.position + 1] in ("_", "{")):
            return self.sum(start)
        match = re.compile(r"(?<![\w])sum_(?=[a-z]\b|\{)").match(self.text, start)
        if match:
            self.position = match.end() - 1
            return self.sum(start)
        if character == "{":
            end = self.closing_brace(start)
            inner = _Translator(self.text, self.position, end, self.depth + 1).translate()
            self.position = min(end + 1, self.stop)
            is_name = re.fullmatch(r"\s*\w*\s*", "".join(letter for letter, _ in inner))
            if is_name:
                self.emit("".join(letter for letter, _ in inner).strip(), start, is_word=True)
                self.end_word()
            else:
                self.out += [("(", start), *inner, (")", end)]
            return None
        if character in "$" or (character in "&~" and self.is_latex):
            is_case = character == "&" and self.cases
            self.emit("," if character == "&" and self.matrices else " if " if is_case else " ", start)
            return None
        if character in "𝟙𝟏":
            return self.emit(INDICATOR, start)
        if character in _SUBSCRIPTS and (not character.isdigit() or character in "₋₊"):
            end = start
            while end < self.stop and self.text[end] in _SUBSCRIPTS:
                end += 1
            subscript = "".join(_SUBSCRIPTS[letter] for letter in self.text[start:end])
            self.position = end
            self.emit(f"_{_SUBSCRIPT_NEIGHBOUR.get(subscript, re.sub('[-+]', '', subscript))}", start)
            return None
        if character in "⁻⁺" or (character in _RAISED and self.text[start + 1 : start + 2] in _RAISED):
            end = start
            while end < self.stop and (self.text[end] in _RAISED or self.text[end] in "²³"):
                end += 1
            raised = "".join(
                _RAISED.get(letter, {"²": "2", "³": "3"}.get(letter, "")) for letter in self.text[start:end]
            )
            self.position = end
            self.emit(f"^({raised})", start)
            return None
        self.out.append((character, start))
        return None

    def command(self) -> None:
        """Translate the command at the current position."""
        start = self.position
        match = re.compile(r"\\([A-Za-z]+|.|$)", re.DOTALL).match(self.text, start, self.stop)
        name = match[1] if match else ""
        self.position = match.end() if match else self.stop
        if name == "\\":
            self.emit(";" if self.matrices else " ⏎ " if self.cases else " ", start)
        elif name in ("begin", "end"):
            environment = "".join(letter for letter, _ in self.group())
            if environment in ("cases", "dcases", "rcases"):
                self.cases += 1 if name == "begin" else -1
                self.emit("⟦" if name == "begin" else "⟧", start)
            elif environment.endswith("matrix"):
                self.matrices += 1 if name == "begin" else -1
                self.emit("[" if name == "begin" else "]", start)
        elif name in ("frac", "dfrac", "tfrac", "cfrac", "nicefrac", "sfrac"):
            self.fraction(start)
        elif name == "sqrt":
            self.emit("sqrt", start, is_word=True)
            inner = self.group()
            if re.match(r"\s*_[\w]", self.text[self.position : self.stop]):  # \sqrt d_k
                self.position += 1
                inner += [("_", start), *self.group()]
            self.out += [("(", start), *inner, (")", start)]
        elif name == "sum":
            self.sum(start)
        elif name in ("mathbb", "mathbf", "mathds", "bm", "boldsymbol", "mathbbm"):
            inner = self.group()
            letters = "".join(letter for letter, _ in inner).strip()
            if letters in ("1", "𝟙") or (letters == "I" and name == "mathbb"):
                self.emit(INDICATOR, start)
            else:
                self.word(inner, start)
        elif name in ("mathcal", "mathscr") or name in _STYLES:
            self.word(self.group(), start)
        elif name in _ACCENTS:
            letters = "".join(letter for letter, _ in self.group()).strip()
            stem = re.match(r"[^\W_]+", letters)
            end = stem.end() if stem else 0
            self.emit(f"{letters[:end]}{_ACCENTS[name]}{letters[end:]}", start, is_word=True)
            self.end_word()
        elif name in _SIGNS:
            self.emit(_SIGNS[name], start)
        elif name in _IGNORED or not name:
            if name in ("left", "right") and self.text[self.position : self.position + 1] == ".":
                self.position += 1
            self.emit(" ", start)
            if name in ("right", "left") and self.out[-1][0] == " ":
                self.out.pop()
        else:  # Greek letters, functions such as \tanh, and macros such as \softmax
            self.emit(_WORDS.get(name, name), start, is_word=True)
            self.end_word()

    def word(self, inner: Characters, start: int) -> None:
        """Append the argument of a command for a typeface."""
        letters = "".join(letter for letter, _ in inner)
        self.emit(letters.strip() if re.fullmatch(r"\s*\w*\s*", letters) else letters, start, is_word=True)
        if letters.strip() != "d":
            self.end_word()

    def fraction(self, start: int) -> None:
        """Translate a fraction; one of derivatives keeps the form ∂J/∂W."""
        numerator, denominator = self.group(), self.group()
        texts = ["".join(letter for letter, _ in part) for part in (numerator, denominator)]
        if _DENOMINATOR.fullmatch(texts[1]) and (_NUMERATOR.fullmatch(texts[0]) or texts[0].strip() in ("∂", "d")):
            self.out += [*_strip(numerator), ("/", start), *_strip(denominator)]
            self.out.append((" ", start))
        else:
            self.out += [("(", start), ("(", start), *numerator, (")", start), ("/", start), ("(", start), *denominator]
            self.out += [(")", start), (")", start)]

    def superscript(self, start: int) -> None:
        """Translate what follows ^: a transpose, a layer or time in brackets, or an exponent."""
        remainder = self.text[self.position : self.stop].lstrip()
        if not remainder.startswith(("{", "\\", "T", "⊤", "'", "[")):
            self.out.append(("^", start))
            return
        if remainder[0] == "[":
            match = re.compile(r"\s*\[\s*(\d)\s*\]").match(self.text, self.position, self.stop)
            if match:
                self.position = match.end()
                self.emit(f"_{match[1]}", start)
            else:
                self.out.append(("^", start))
            return
        inner = self.group()
        content = "".join(letter for letter, _ in inner).strip()
        if both := re.fullmatch(r"([\[(<⟨].*[\])>⟩])\s*(?:T|⊤)", content):  # h^{(t)\top}
            self.layer(both[1], start)
            content = "T"
        if _TRANSPOSE.fullmatch(content):
            self.emit(".T", start)
            following = self.text[self.position : self.position + 1]
            if following.isalnum() or following == "_":
                self.emit(" ", start)
        elif content in ("'", "′"):
            self.emit("'", start)
        elif _LAYER.fullmatch(content) and self.out and (self.out[-1][0].isalnum() or self.out[-1][0] == "}"):
            self.layer(content, start)
        elif content not in ("*", "⋆", ""):
            self.out += [("^", start), ("(", start), *inner, (")", start)]

    def layer(self, content: str, start: int) -> None:
        """Append a layer, time or example in brackets, such as (1), [t-1] or (i), as a subscript."""
        match = _LAYER.fullmatch(content)
        label = match[1].replace(" ", "").replace("−", "-") if match else ""
        name = _SUBSCRIPT_NEIGHBOUR.get(label, re.sub(r"[^A-Za-z0-9]", "", label))
        tail = "".join(letter for letter, _ in self.out[-2:])
        if re.fullmatch(r"_[a-z]", tail) and re.fullmatch(r"[a-su-z]", name):  # x_j^{(i)} is x_ij
            self.out.insert(len(self.out) - 1, (name, start))
        elif name:
            self.emit(f"_{name}", start)

    def subscript(self, start: int) -> None:
        """Translate what follows _ in braces or after a command: a part of the name, or an indicator's condition."""
        inner = self.group()
        content = "".join(letter for letter, _ in inner).replace("−", "-")
        if self.out and self.out[-1][0] == INDICATOR:
            self.out += [("[", start), *inner, ("]", start)]
            return
        squeezed = re.sub(r"\s", "", content)
        if excluded := re.fullmatch(r"([a-z])≠([a-z])", squeezed):  # du_{w≠o}
            self.emit(f"_{excluded[1]}{EXCEPT}{excluded[2]}", start)
            return
        name = _SUBSCRIPT_NEIGHBOUR.get(squeezed) or re.sub(r"[^\w]", "", squeezed)
        if re.fullmatch(r"[a-z]_[a-z]", name) and self.out and self.out[-1][0] != "∇":  # u_{w_s}: the word s
            name = name[-1]
        self.emit(f"_{name}" if name else "", start)
        self.end_word()

    def sum(self, start: int) -> None:
        """Translate a sum over one or more indices with its bounds into ∑{index}, or ∑{index≠label}."""
        scripts = {"_": "", "^": ""}
        while True:
            remainder = self.text[self.position : self.stop]
            space = len(remainder) - len(remainder.lstrip())
            if remainder.lstrip().startswith(("\\limits", "\\nolimits")):
                self.position += space + len(re.match(r"\\[a-z]+", remainder.lstrip())[0])  # pyright: ignore[reportOptionalSubscript]
                continue
            sign = remainder[space : space + 1]
            if sign not in scripts or not sign or scripts[sign]:
                break
            self.position += space + 1
            scripts[sign] = "".join(letter for letter, _ in self.group()) or " "
        bounds = re.sub(r"\s", "", scripts["_"])
        letters = re.match(r"([a-zA-Z](?:,?[a-zA-Z])?)(?:=[01]?|∈.*|≠([a-zA-Z]))?$", bounds)
        other = re.match(r"([a-zA-Z])(?:=1|∈\w+),\1≠([a-zA-Z])$", bounds)
        if other:
            self.emit(f"∑{{{other[1]}≠{other[2]}}}", start)
        elif letters and letters[2]:
            self.emit(f"∑{{{letters[1]}≠{letters[2]}}}", start)
        elif letters:
            self.emit("".join(f"∑{{{letter}}}" for letter in letters[1].replace(",", "")), start)
        else:
            self.emit("∑{}" if not bounds else f"∑{{{bounds}}}", start)


def _strip(characters: Characters) -> Characters:
    """Return characters without blanks at both ends."""
    first = next((index for index, (letter, _) in enumerate(characters) if not letter.isspace()), len(characters))
    last = len(characters)
    while last > first and characters[last - 1][0].isspace():
        last -= 1
    return characters[first:last]
