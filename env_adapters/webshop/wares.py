"""What the generated shop deals in: departments, product types, attributes, options, and how customers speak.

All of it is invented. Rules that a test holds: no two attributes of a department and no two values of an option are
the same to the reward's fuzzy comparison, and no option value holds a colour word unless it is that colour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Department:
    """One department: its types by group, what they can be like, and what can be chosen."""

    name: str
    root: str  # first part of the category path
    groups: Mapping[str, tuple[str, ...]]  # second part of the path to product types
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]  # option name to values; a product has at most two
    prices: tuple[int, int]  # dollars, lowest and highest


@dataclass(frozen=True)
class Wares:
    """What one kind of catalogue is made of."""

    departments: tuple[Department, ...]
    plain: bool  # few words: no brands, models or descriptions, whole prices, ids that are one word
    num_attributes: tuple[int, int]  # of a product
    in_title: int  # attributes that the title names
    openings: tuple[str, ...]  # of an instruction; {thing} is the type with its attributes
    joints: tuple[str, ...]  # attributes joined to the type
    choices: tuple[str, ...]  # how one wished option is said; {name}, {value}


def _list(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in text.split(","))


COLOURS = _list("black, white, red, blue, green, grey, pink, purple, brown, orange, yellow, teal, beige, navy")
SIZES = _list("small, medium, large, petite, tall")

_BEAUTY = Department(
    "beauty",
    "Beauty & Personal Care",
    {
        "Hair Care": _list("shampoo, conditioner, hair brush, hair dryer"),
        "Skin Care": _list("face cream, body lotion, face mask, lip balm, bath sponge"),
        "Makeup & Grooming": _list("nail polish, perfume, eye shadow, makeup mirror, razor, toothbrush"),
    },
    _list(
        """
        cruelty free, paraben free, sulfate free, alcohol free, fragrance free, oil absorbing, long lasting,
        fast drying, deep cleansing, anti aging, sun protecting, water resistant, sweat proof, smudge proof,
        vegan formula,
        dermatologist tested, hypoallergenic, travel size, sensitive skin, dry scalp, damaged ends, curly hair,
        aloe vera, tea tree, argan extract, coconut scent, shea butter, vitamin enriched, hyaluronic serum,
        salicylic acid, collagen boosting, pore minimizing, brightening effect, matte finish, glossy shine,
        velvet texture, non greasy, easy rinse, gentle exfoliating, double sided, ergonomic handle, bamboo grip,
        refillable, recyclable tube, child safe, soft bristle, heat protecting, frizz control, volume lifting,
        dye friendly, overnight care, shine balancing, clay based, mineral rich, plant derived, honey infused,
        rose water, fluoride free, firm hold, self standing, wide tooth, shaving comfort, cuticle caring, day cream
        """
    ),
    {"scent": _list("vanilla, jasmine, cedar, citrus, eucalyptus"), "volume": _list("mini, regular, jumbo")},
    (4, 60),
)
_ELECTRONICS = Department(
    "electronics",
    "Electronics",
    {
        "Audio & Video": _list("headphones, speaker, webcam, hdmi cable, projector"),
        "Mobile Accessories": _list("phone case, tablet stand, power bank, wall charger, smart watch"),
        "Computers": _list("keyboard, mouse pad, wifi router, laptop sleeve, camera bag, desk fan"),
    },
    _list(
        """
        noise cancelling, wireless, bluetooth enabled, fast charging, quick release, usb powered, battery operated,
        solar panel, water resistant, dust proof, shock absorbing, anti slip, glare reducing, scratch resistant,
        tempered glass, carbon fiber, aluminum alloy, leather cover, silicone grip, foldable design, adjustable angle,
        magnetic mount, wall mountable, compact size, heavy duty, low latency, high resolution, surround sound,
        deep bass, voice control, touch sensitive, remote included, motion sensing, night vision, wide angle,
        auto focus, plug and play, dual band, long range, memory foam, detachable cord, braided wire, gold plated,
        surge protection, overheat shutdown, energy saving, silent operation, backlit keys, mechanical switches,
        spill proof, ambidextrous, stylus holder, carrying pouch, built in kickstand, wrist rest, privacy shutter,
        screen protecting, ultra thin, travel friendly, car compatible, multi device, universal fit, live captions
        """
    ),
    {"color": COLOURS, "style": _list("basic kit, travel kit, deluxe kit")},
    (8, 180),
)
_FASHION = Department(
    "fashion",
    "Clothing, Shoes & Jewelry",
    {
        "Clothing": _list("shirt, sweater, jacket, jeans, dress, skirt"),
        "Shoes": _list("boots, sneakers, sandals, slippers"),
        "Accessories": _list("scarf, gloves, belt, socks, hat"),
    },
    _list(
        """
        machine washable, hand wash, quick drying, moisture wicking, wrinkle resistant, stain repellent, uv protective,
        water proof, wind blocking, fleece lined, thermal insulated, breathable mesh, stretch fabric, organic cotton,
        merino wool, genuine leather, faux suede, linen blend, denim look, silk lining, rubber sole, memory insole,
        arch support, steel toe, non slip, ankle strap, pull on, laced front, zipper closure, button placket,
        elastic waist, drawstring hem, adjustable buckle, high rise, low cut, slim fit, relaxed shape, regular length,
        tailored seams,
        long sleeve, short cuffs, sleeveless, crew neck, turtle collar, hooded, pleated, quilted, embroidered,
        striped pattern, floral print, plaid weave, polka dots, reflective trim, hidden pocket, touchscreen fingertips,
        reversible, packable, vintage style, everyday wear, hiking ready, office dress, tummy control, cushioned heel
        """
    ),
    {"color": COLOURS, "size": SIZES},
    (9, 150),
)
_GARDEN = Department(
    "garden",
    "Home & Kitchen",
    {
        "Furniture": _list("bookshelf, desk chair, sofa, bed frame, coffee table, nightstand"),
        "Bedding & Textiles": _list("curtain, rug, pillow, blanket"),
        "Decor & Storage": _list("table lamp, wall clock, plant pot, storage box, wall mirror, candle"),
    },
    _list(
        """
        solid wood, engineered board, bamboo frame, metal legs, wrought iron, powder coated, glass top, marble look,
        rattan weave, braided jute, cotton cover, velvet upholstery, linen shade, blackout lining, easy assembly,
        space saving, stackable, foldable, wall hanging, adjustable height, swivel base, lumbar support, padded seat,
        memory foam, hypoallergenic filling, down alternative, machine washable, spot clean, stain proof,
        fade resistant, weather sealed, rust preventing, drainage holes, self watering, non skid, anti tip,
        locking wheels, open shelves, hidden storage, soft close, dimmable, touch switch, usb port, battery powered,
        silent sweep, glow in the dark, hand painted, carved details, tufted back, nailhead trim, rounded edges,
        geometric pattern, floral motif, farmhouse style, industrial design, mid century, coastal charm, scented wax,
        long burning, lid included, rope handles, pet friendly, child safe, double stitched, reading light
        """
    ),
    {"color": COLOURS, "size": _list("twin, full, queen, king")},
    (12, 400),
)
_GROCERY = Department(
    "grocery",
    "Grocery & Gourmet Food",
    {
        "Snacks": _list("cookies, granola, trail mix, popcorn, protein bar, crackers, dried fruit"),
        "Beverages": _list("ground coffee, herbal tea, juice, cocoa"),
        "Pantry": _list("pasta, cooking oil, peanut butter, salad dressing, jam, spice mix, soup"),
    },
    _list(
        """
        gluten free, dairy free, nut free, soy free, sugar free, fat free, low sodium, reduced calorie, keto friendly,
        high fiber, extra protein, paleo diet, plant based, non gmo, certified organic, kosher, halal, fair trade,
        single origin, hand picked, stone ground, cold pressed, slow roasted, oven baked, freeze dried, sun ripened,
        air popped, kettle cooked, small batch, no preservatives, additive free, whole grain, ancient seeds, sprouted,
        fermented, caffeine free, mild roast, bold flavor, lightly salted, honey sweetened, naturally tangy,
        extra crunchy, chewy texture, smooth blend, resealable bag, glass jar, individually wrapped, gift boxed,
        bulk size, ready to eat, quick cooking, microwave safe, school approved, energy boosting, antioxidant rich,
        omega fats, probiotic, farm grown, family recipe, shelf stable, lactose free, wild harvested, hot chili
        """
    ),
    {
        "flavor": _list("vanilla, cinnamon, hazelnut, ginger, mango, cherry, maple, garlic, pepper"),
        "pack": _list("single pack, twin pack, family pack"),
    },
    (3, 45),
)

FULL = Wares(
    departments=(_BEAUTY, _ELECTRONICS, _FASHION, _GARDEN, _GROCERY),
    plain=False,
    num_attributes=(3, 5),
    in_title=2,
    openings=(
        "i am looking for {thing}", "i need {thing}", "i want to buy {thing}", "find me {thing}", "show me {thing}",
        "i would like {thing}", "can you find {thing}", "please help me get {thing}", "looking for {thing}",
        "i'm shopping for {thing}", "get me {thing}", "my friend asked me for {thing}", "i am after {thing}",
    ),
    joints=(
        "{attributes} {type}", "a {type} that is {attributes}", "a {attributes} {type}", "{type} which is {attributes}",
        "a {type} with {attributes}", "some {type}, {attributes}", "a {type} described as {attributes}",
    ),
    choices=(
        " in {value}", ", {name} {value}", " with {name} {value}", ", and the {name} should be {value}",
        " of the {value} {name}", ", in the {name} {value}",
    ),
)  # fmt: skip


def _few(name: str, types: str, attributes: str, options: Mapping[str, str], prices: tuple[int, int]) -> Department:
    groups = {name: _list(types)}
    chosen = {option: _list(values) for option, values in options.items()}
    return Department(name, "Shop", groups, _list(attributes), chosen, prices)


_COLOUR = {"color": "red, blue, green, black"}
TINY = Wares(
    departments=(
        _few("beauty", "shampoo, perfume, razor", "vegan, gentle, mineral, refillable, herbal, glossy",
             {"scent": "vanilla, cedar, citrus"}, (5, 60)),
        _few("electronics", "keyboard, speaker, charger", "wireless, compact, backlit, silent, rugged, magnetic",
             _COLOUR, (10, 90)),
        _few("fashion", "shirt, jacket, boots", "cotton, leather, hooded, waterproof, quilted, washable",
             {**_COLOUR, "size": "small, medium, large"}, (10, 90)),
        _few("garden", "lamp, rug, sofa", "wooden, woven, dimmable, foldable, handmade, padded", _COLOUR, (10, 90)),
        _few("grocery", "cookies, pasta, tea", "crunchy, roasted, spicy, kosher, sugarless, smoked",
             {"flavor": "ginger, mango, maple"}, (3, 40)),
    ),
    plain=True,
    num_attributes=(2, 3),
    in_title=3,
    openings=("i need {thing}", "find me {thing}", "i am looking for {thing}"),
    joints=("a {attributes} {type}",),
    choices=(" in {value}", " with {name} {value}"),
)  # fmt: skip

WARES = {"full": FULL, "tiny": TINY}
