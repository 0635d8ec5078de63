//! Colours of contestants: the same everywhere in a report.

use std::fmt::Write;

/// Colours by a contestant's position, on a light and on a dark background.
///
/// A search maximised their distance in CIELAB for normal vision and for protanopia, deuteranopia
/// and tritanopia (Machado et al. 2009). No ten colours are far enough apart for everyone, so lines
/// from the seventh on are dashed, and bars carry names.
const COLOURS: [(&str, &str); 10] = [
    ("#718090", "#89a0ac"),
    ("#76680f", "#c9783a"),
    ("#249ade", "#68b1ff"),
    ("#084c28", "#4fe07a"),
    ("#6e0980", "#d3c6a8"),
    ("#21192f", "#eef4fb"),
    ("#869500", "#dfe95a"),
    ("#7b22ee", "#8f7cf2"),
    ("#c80565", "#f1862f"),
    ("#3d62be", "#5592c0"),
];

/// Background in both colour schemes.
const GROUND: (&str, &str) = ("#ffffff", "#14161a");

/// Number of solid lines.
const SOLID: usize = 6;

const DASHES: [&str; 3] = ["6 3", "2 3", "8 3 2 3"];

/// Returns the CSS class of a contestant's colour.
pub(super) fn class(place: usize) -> String {
    format!("c{}", place % COLOURS.len())
}

/// Returns `stroke-dasharray` for contestants whose colour is not distinct enough.
pub(super) fn dash(place: usize) -> Option<&'static str> {
    let after = place.checked_sub(SOLID)?;
    DASHES.get(after % DASHES.len()).copied()
}

/// Returns the rules for both colour schemes.
pub(super) fn css() -> String {
    let variables = |pick: fn(&(&'static str, &'static str)) -> &'static str| {
        let mut css = format!("--ground:{};", pick(&GROUND));
        for (place, colours) in COLOURS.iter().enumerate() {
            let _ = write!(css, "--c{place}:{};", pick(colours));
        }
        css
    };
    let mut css = format!(
        ":root{{{}}}\n@media(prefers-color-scheme:dark){{:root{{{}}}}}\n",
        variables(|pair| pair.0),
        variables(|pair| pair.1)
    );
    for place in 0..COLOURS.len() {
        let _ = writeln!(css, ".c{place}{{color:var(--c{place})}}");
    }
    css
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance by WCAG 2.2.
    fn luminance(colour: &str) -> f64 {
        let channel = |at: usize| {
            let byte = u8::from_str_radix(&colour[at..at + 2], 16).expect("hexadecimal");
            let value = f64::from(byte) / 255.0;
            if value <= 0.040_45 {
                value / 12.92
            } else {
                ((value + 0.055) / 1.055).powf(2.4)
            }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    /// WCAG 2.2, 1.4.11: graphics have a contrast of at least 3.
    #[test]
    fn every_colour_stands_out_from_the_ground() {
        for (light, dark) in COLOURS {
            assert!(contrast(light, GROUND.0) >= 3.0, "{light} on light ground");
            assert!(contrast(dark, GROUND.1) >= 3.0, "{dark} on dark ground");
        }
    }

    #[test]
    fn the_first_thirty_lines_are_distinguishable() {
        let looks: Vec<_> = (0..30).map(|place| (class(place), dash(place))).collect();
        for (at, look) in looks.iter().enumerate() {
            assert!(!looks[..at].contains(look), "{at}: {look:?}");
        }
    }
}
