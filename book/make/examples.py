"""The sixteen examples of the page *Explore a joint*: what is masked, and why."""

import re
from dataclasses import dataclass

MARKED = re.compile(r"\{(.+?)\}")


@dataclass(frozen=True)
class Example:
    """A sentence for one model, with the two tokens that are masked in braces."""

    name: str
    model: str
    text: str
    note: str  # about the sentence, never about a model's prediction
    label: str = ""  # shown in lists where the text would be too long

    @property
    def plain(self) -> str:
        return MARKED.sub(r"\1", self.text)

    @property
    def masked(self) -> str:
        return MARKED.sub("[MASK]", self.text)

    @property
    def pieces(self) -> list[str]:
        """The text before, at, between, at and after the two marked tokens."""
        return MARKED.split(self.text)

    @property
    def title(self) -> str:
        return self.label or MARKED.sub("___", self.text)


EXAMPLES = (
    Example(
        "street",
        "en-small",
        "A man is {walking} {down} the street.",
        "A verb and the small word that goes with it.",
    ),
    Example(
        "casino",
        "en-small",
        "The {man} {is} at the casino.",
        "The example of the paper's Appendix D: a noun and the verb that agrees with it.",
    ),
    Example(
        "children",
        "en-small",
        "The {children} {are} playing in the park.",
        "Agreement in number: one child is playing, several are.",
    ),
    Example(
        "hair",
        "en-small",
        "A {woman} is brushing {her} hair.",
        "A pronoun that has to agree with a noun three words earlier.",
    ),
    Example(
        "guitar",
        "en-small",
        "A woman is {playing} the {guitar}.",
        "A verb and its object: what is played is seldom eaten.",
    ),
    Example(
        "grass",
        "en-small",
        "A {black} and {white} dog runs through the grass.",
        "Two colours: likely to occur together, unlikely to be the same.",
    ),
    Example(
        "bikes",
        "en-small",
        "Two boys are {riding} their {bikes} along the river path.",
        "A verb and its object, with a word between them.",
    ),
    Example(
        "beach",
        "en-small",
        "Two {dogs} are chasing the same {ball} along the beach.",
        "Who chases and what is chased, five words apart.",
    ),
    Example(
        "laundry",
        "en-small",
        "The cat sleeps {on} {top} of the warm laundry.",
        "Two words of a fixed phrase.",
    ),
    Example(
        "glass",
        "en-small",
        "A woman is {looking} {at} the fish behind the glass.",
        "A verb that chooses its preposition.",
    ),
    Example(
        "horse",
        "en-small",
        "A {little} {girl} is drawing a horse with six legs.",
        "An adjective and its noun.",
    ),
    Example(
        "bus",
        "en-small",
        "A {tall} man in a {red} shirt is waiting for the bus.",
        "Two adjectives that hardly depend on each other.",
    ),
    Example(
        "bromide",
        "rxnmapper",
        "CC(O)c1cc({Br})ccc1Cl>>CC(=O)c1cc({Br})ccc1Cl",
        "An oxidation, as SMILES. Masked: an atom that takes no part, before and after.",
        "An oxidation: one atom before and after",
    ),
    Example(
        "sulfonate",
        "rxnmapper",
        "CS(=O)(=O){Cl}.{O}CC1CCCC1>>CS(=O)(=O)OCC1CCCC1",
        "A sulfonate ester forms, as SMILES. Masked: the atom that leaves and its successor.",
        "A sulfonate ester: the atom that leaves and its successor",
    ),
    Example(
        "bevacizumab",
        "sapiens-vh",
        "EVQLVESGGGLVQPGGSLRLSCAASGYTFTNYGMNWVRQAPGKGLEWVGWINTYTGEPTYAADFKRRFTFSLDTSKSTAY"
        "LQMNSLRAEDTAVYYCAKYPHY{Y}{G}SSHWYFDVWGQGTLVTVSS",
        "The heavy chain of an antibody. Masked: two neighbours in its third loop.",
        "Bevacizumab, residues 103 and 104",
    ),
    Example(
        "apitegromab",
        "sapiens-vh",
        "QVQLVESGGGVVQPGRSLRLSCAASGFTFSSYGMHWVRQAPGKGLEWVAVISYDGSNKYYADSVKGRFTISRDNSKNTLY"
        "LQMNSLRAEDTAVYYCARDLLVRFLEWS{H}{Y}YGMDVWGQGTTVTVSS",
        "The heavy chain of another antibody. Masked: two neighbours in its third loop.",
        "Apitegromab, residues 109 and 110",
    ),
)
