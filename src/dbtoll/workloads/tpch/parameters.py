"""Substitution parameters of the 22 queries: drawn by clauses 2.4.x.3 of the TPC-H specification, or for validation.

All values are texts, in the order in which the clause lists them; the queries' casts give them their types.
"""

from __future__ import annotations

from collections.abc import Callable

from dbtoll.workload_parts.drawing import Draw

# Clause 4.2.2.13: syllables of types and containers, segments, modes. Clause 4.2.3: nations, regions, colours.
TYPE_SYLLABLES = (
    ("STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO"),
    ("ANODIZED", "BURNISHED", "PLATED", "POLISHED", "BRUSHED"),
    ("TIN", "NICKEL", "BRASS", "STEEL", "COPPER"),
)
CONTAINER_SYLLABLES = (
    ("SM", "LG", "MED", "JUMBO", "WRAP"),
    ("CASE", "BOX", "BAG", "JAR", "PKG", "PACK", "CAN", "DRUM"),
)
SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD")
MODES = ("REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB")
NATIONS_OF = {
    "AFRICA": ("ALGERIA", "ETHIOPIA", "KENYA", "MOROCCO", "MOZAMBIQUE"),
    "AMERICA": ("ARGENTINA", "BRAZIL", "CANADA", "PERU", "UNITED STATES"),
    "ASIA": ("CHINA", "INDIA", "INDONESIA", "JAPAN", "VIETNAM"),
    "EUROPE": ("FRANCE", "GERMANY", "ROMANIA", "RUSSIA", "UNITED KINGDOM"),
    "MIDDLE EAST": ("EGYPT", "IRAN", "IRAQ", "JORDAN", "SAUDI ARABIA"),
}
REGIONS = tuple(NATIONS_OF)
REGION_OF = {nation: region for region, nations in NATIONS_OF.items() for nation in nations}
NATIONS = tuple(sorted(REGION_OF))
COLORS = (
    "almond", "antique", "aquamarine", "azure", "beige", "bisque", "black", "blanched", "blue", "blush", "brown",
    "burlywood", "burnished", "chartreuse", "chiffon", "chocolate", "coral", "cornflower", "cornsilk", "cream",
    "cyan", "dark", "deep", "dim", "dodger", "drab", "firebrick", "floral", "forest", "frosted", "gainsboro",
    "ghost", "goldenrod", "green", "grey", "honeydew", "hot", "indian", "ivory", "khaki", "lace", "lavender",
    "lawn", "lemon", "light", "lime", "linen", "magenta", "maroon", "medium", "metallic", "midnight", "mint",
    "misty", "moccasin", "navajo", "navy", "olive", "orange", "orchid", "pale", "papaya", "peach", "peru", "pink",
    "plum", "powder", "puff", "purple", "red", "rose", "rosy", "royal", "saddle", "salmon", "sandy", "seashell",
    "sienna", "sky", "slate", "smoke", "snow", "spring", "steel", "tan", "thistle", "tomato", "turquoise", "violet",
    "wheat", "white", "yellow",
)  # fmt: skip
COUNTRY_CODES = tuple(str(code) for code in range(10, 35))  # 4.2.2.9: key of the nation (0 to 24) + 10


def drawn(query: str, seed: int, scale: float) -> tuple[str, ...]:
    """The parameters of ``query`` (``Q1`` … ``Q22``) for ``seed``; those of one query do not depend on the others'."""
    return _RULES[query](Draw("tpch", query, seed), scale)


def for_validation(query: str, scale: float) -> tuple[str, ...]:
    """The parameters of ``query`` with which the specification's answers at scale 1 were computed."""
    if query == "Q11":
        return ("GERMANY", _fraction(scale))
    return tuple(_VALIDATION[query])


def _fraction(scale: float) -> str:
    """2.4.11.3: 0.0001 / SF, with the ten digits that the TPC's query generator writes."""
    return f"{0.0001 / scale:.10f}"


def _month(draw: Draw, first: int, last: int) -> str:
    """The first day of a month, drawn from the ``first`` to the ``last``; month 0 is January 1993."""
    month = draw.integer(first, last)
    return f"{1993 + month // 12}-{month % 12 + 1:02}-01"


def _year(draw: Draw) -> str:
    return f"{draw.integer(1993, 1997)}-01-01"


def _brand(draw: Draw) -> str:
    return f"Brand#{draw.integer(1, 5)}{draw.integer(1, 5)}"


def _words(draw: Draw, *syllables: tuple[str, ...]) -> str:
    return " ".join(draw.choice(words) for words in syllables)


def _nation_of_region(draw: Draw) -> tuple[str, str]:
    nation = draw.choice(NATIONS)
    return nation, REGION_OF[nation]


_RULES: dict[str, Callable[[Draw, float], tuple[str, ...]]] = {
    "Q1": lambda draw, scale: (str(draw.integer(60, 120)),),
    "Q2": lambda draw, scale: (str(draw.integer(1, 50)), draw.choice(TYPE_SYLLABLES[2]), draw.choice(REGIONS)),
    "Q3": lambda draw, scale: (draw.choice(SEGMENTS), f"1995-03-{draw.integer(1, 31):02}"),
    "Q4": lambda draw, scale: (_month(draw, 0, 57),),
    "Q5": lambda draw, scale: (draw.choice(REGIONS), _year(draw)),
    "Q6": lambda draw, scale: (_year(draw), f"0.0{draw.integer(2, 9)}", str(draw.integer(24, 25))),
    "Q7": lambda draw, scale: tuple(draw.distinct(NATIONS, 2)),
    "Q8": lambda draw, scale: (*_nation_of_region(draw), _words(draw, *TYPE_SYLLABLES)),
    "Q9": lambda draw, scale: (draw.choice(COLORS),),
    "Q10": lambda draw, scale: (_month(draw, 1, 24),),
    "Q11": lambda draw, scale: (draw.choice(NATIONS), _fraction(scale)),
    "Q12": lambda draw, scale: (*draw.distinct(MODES, 2), _year(draw)),
    "Q13": lambda draw, scale: (
        draw.choice(("special", "pending", "unusual", "express")),
        draw.choice(("packages", "requests", "accounts", "deposits")),
    ),
    "Q14": lambda draw, scale: (_month(draw, 0, 59),),
    "Q15": lambda draw, scale: (_month(draw, 0, 57),),
    "Q16": lambda draw, scale: (
        _brand(draw),
        _words(draw, *TYPE_SYLLABLES[:2]),
        *(str(size) for size in draw.distinct(range(1, 51), 8)),
    ),
    "Q17": lambda draw, scale: (_brand(draw), _words(draw, *CONTAINER_SYLLABLES)),
    "Q18": lambda draw, scale: (str(draw.integer(312, 315)),),
    "Q19": lambda draw, scale: (
        *(str(draw.integer(low, high)) for low, high in ((1, 10), (10, 20), (20, 30))),
        *(_brand(draw) for _ in range(3)),
    ),
    "Q20": lambda draw, scale: (draw.choice(COLORS), _year(draw), draw.choice(NATIONS)),
    "Q21": lambda draw, scale: (draw.choice(NATIONS),),
    "Q22": lambda draw, scale: tuple(draw.distinct(COUNTRY_CODES, 7)),
}

_VALIDATION: dict[str, tuple[str, ...]] = {
    "Q1": ("90",),
    "Q2": ("15", "BRASS", "EUROPE"),
    "Q3": ("BUILDING", "1995-03-15"),
    "Q4": ("1993-07-01",),
    "Q5": ("ASIA", "1994-01-01"),
    "Q6": ("1994-01-01", "0.06", "24"),
    "Q7": ("FRANCE", "GERMANY"),
    "Q8": ("BRAZIL", "AMERICA", "ECONOMY ANODIZED STEEL"),
    "Q9": ("green",),
    "Q10": ("1993-10-01",),
    "Q12": ("MAIL", "SHIP", "1994-01-01"),
    "Q13": ("special", "requests"),
    "Q14": ("1995-09-01",),
    "Q15": ("1996-01-01",),
    "Q16": ("Brand#45", "MEDIUM POLISHED", "49", "14", "23", "45", "19", "3", "36", "9"),
    "Q17": ("Brand#23", "MED BOX"),
    "Q18": ("300",),
    "Q19": ("1", "10", "20", "Brand#12", "Brand#23", "Brand#34"),
    "Q20": ("forest", "1994-01-01", "CANADA"),
    "Q21": ("SAUDI ARABIA",),
    "Q22": ("13", "31", "23", "29", "30", "18", "17"),
}
