//! Draws a model into a frame.

mod details;
mod help;
mod overview;
mod paint;
mod screens;
mod table;

use crate::model::{Mode, Model, Screen};
use crate::text::{cut_end, width, wrapped};
use paint::Canvas;
use ratatui_core::layout::Rect;
use ratatui_core::terminal::Frame;

pub use paint::Palette;

/// The smallest terminal that the view can use, in columns and lines.
pub const SMALLEST: (u16, u16) = (60, 16);

/// Lines below a table for the selected row, messages and questions.
const DETAILS: u16 = 3;

/// Draws the view.
pub fn draw(frame: &mut Frame<'_>, model: &mut Model, palette: Palette) {
    let area = frame.area();
    let mut canvas = Canvas::new(frame.buffer_mut(), palette);
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        return too_small(&mut canvas, area);
    }
    let row = |y: u16| Rect {
        y,
        height: 1,
        ..area
    };
    let details = match has_details(model) {
        true => DETAILS,
        false => 0,
    };
    let below = details + 2;
    let body = Rect {
        y: 1,
        height: area.height - below - 1,
        ..area
    };
    tabs(&mut canvas, row(0), model);
    if model.mode == Mode::Help {
        let area = Rect {
            height: area.height - 2,
            ..body
        };
        help::draw(&mut canvas, area);
    } else {
        match model.screen {
            Screen::Overview => overview::draw(&mut canvas, body, model),
            _ => screens::draw(&mut canvas, body, model),
        }
        status(&mut canvas, row(area.height - below), model);
        let area = Rect {
            y: area.height - below + 1,
            height: details,
            ..area
        };
        details::draw(&mut canvas, area, model);
    }
    keys(&mut canvas, row(area.height - 1), model);
}

/// The overview has no selected row.
fn has_details(model: &Model) -> bool {
    let is_browsing = matches!(model.mode, Mode::Browse | Mode::Help);
    model.screen != Screen::Overview || !is_browsing || model.notice.is_some()
}

fn too_small(canvas: &mut Canvas<'_>, area: Rect) {
    let (width, height) = SMALLEST;
    let text = format!(
        "taupe top needs {width} columns and {height} lines; this terminal has {} and {}. q quits.",
        area.width, area.height
    );
    for (y, line) in (0..area.height).zip(wrapped(&text, area.width.into())) {
        canvas.put(0, y, &line, canvas.palette.warning(), area.width);
    }
}

/// Draws the titles of all screens.
fn tabs(canvas: &mut Canvas<'_>, area: Rect, model: &Model) {
    let palette = canvas.palette;
    let right = match model.is_paused {
        true => ("PAUSED".to_owned(), palette.warning()),
        false => (
            format!("every {} s", model.interval.as_secs()),
            palette.quiet(),
        ),
    };
    let mut x = 1;
    if area.width >= 80 {
        x = canvas.put(x, area.y, "taupe", palette.title(), area.width) + 2;
    }
    for (number, screen) in (1..).zip(Screen::ALL) {
        let title = format!("{number} {}", screen.title());
        let style = match screen == model.screen && model.mode != Mode::Help {
            true => palette.selected(),
            false => palette.plain(),
        };
        let room = area.width.saturating_sub(x);
        // At 60 columns, the last title is shortened.
        x = canvas.put(x, area.y, &cut_end(&title, room.into()), style, room);
        x += if area.width >= 80 { 2 } else { 1 };
    }
    let (text, style) = right;
    let width = u16::try_from(text.chars().count()).unwrap_or_default();
    if x + width < area.width || model.is_paused {
        canvas.put(area.width - width - 1, area.y, &text, style, width);
    }
}

/// Draws the line between the table and the details.
fn status(canvas: &mut Canvas<'_>, area: Rect, model: &Model) {
    let palette = canvas.palette;
    let mut parts = Vec::new();
    if let Some(order) = model.order() {
        let rows = model.rows();
        parts.push(match model.position(&rows) {
            Some(position) => format!("{} of {}", position + 1, rows.len()),
            None => "0 of 0".to_owned(),
        });
        parts.push(format!("by {order}"));
    }
    if !model.filter.is_empty() && model.mode != Mode::Filter {
        parts.push(format!("filter: {}", model.filter));
    }
    canvas.rule(area);
    let width = area.width - 2;
    if !parts.is_empty() {
        let text = format!(" {} ", parts.join(", "));
        let text = cut_end(&text, width.into());
        canvas.put(2, area.y, &text, palette.quiet(), width);
    }
    if model.screen == Screen::Overview && model.overflow > 0 {
        let text = " ↑↓ more ";
        canvas.put(2, area.y, text, palette.quiet(), width);
    }
}

/// Draws the keys that have a meaning now.
fn keys(canvas: &mut Canvas<'_>, area: Rect, model: &Model) {
    let palette = canvas.palette;
    const MOVES: [(&str, &str); 3] = [("a", "tunnel"), ("d", "bypass"), ("x", "remove")];
    const TABLE: [(&str, &str); 2] = [("s", "sort"), ("/", "filter")];
    let keys: Vec<(&str, &str)> = match (&model.mode, model.screen) {
        (Mode::Filter, _) => vec![("Enter", "keep"), ("Esc", "clear")],
        (Mode::Help, _) => vec![("Esc", "back")],
        (Mode::Choose { .. }, _) => vec![("1-9", "choose"), ("Esc", "cancel")],
        (Mode::Confirm(_), _) => vec![("Enter", "run it"), ("Esc", "cancel")],
        (Mode::Browse, screen) => {
            let mut keys = vec![("↑↓", "select")];
            if screen == Screen::Overview {
                keys = vec![("1-5 Tab", "screen")];
            }
            if screen == Screen::Applications {
                keys.extend(MOVES);
            }
            if screen != Screen::Overview {
                keys.extend(TABLE);
            }
            let pause = if model.is_paused { "continue" } else { "pause" };
            keys.extend([("p", pause), ("?", "help"), ("q", "quit")]);
            keys
        }
    };
    let length = |(key, meaning): &(&str, &str)| width(key) + width(meaning) + 3;
    let mut keys = keys;
    // The last two, help and quit, stay.
    while keys.len() > 3 && keys.iter().map(length).sum::<usize>() > usize::from(area.width) + 1 {
        keys.remove(keys.len() - 3);
    }
    let mut x = 1;
    for (key, meaning) in keys {
        let room = area.width.saturating_sub(x);
        x = canvas.put(x, area.y, key, palette.key(), room) + 1;
        let room = area.width.saturating_sub(x);
        x = canvas.put(x, area.y, meaning, palette.plain(), room) + 2;
    }
}

#[cfg(test)]
mod tests;
