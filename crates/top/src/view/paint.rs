//! Styles, and text at a place of the frame.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};

/// Styles with or without colours. What they say is also said in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Palette {
    /// Colours are wanted.
    pub is_coloured: bool,
}

impl Palette {
    const fn colour(self, colour: Color) -> Style {
        match self.is_coloured {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    pub(super) const fn plain(self) -> Style {
        Style::new()
    }

    pub(super) const fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) const fn key(self) -> Style {
        self.colour(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub(super) const fn quiet(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(super) const fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(super) const fn good(self) -> Style {
        self.colour(Color::Green)
    }

    pub(super) const fn warning(self) -> Style {
        self.colour(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    pub(super) const fn bad(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(super) const fn bars(self) -> Style {
        self.colour(Color::Cyan)
    }
}

/// The frame while it is drawn.
pub(super) struct Canvas<'a> {
    buffer: &'a mut Buffer,
    pub(super) palette: Palette,
}

impl<'a> Canvas<'a> {
    pub(super) const fn new(buffer: &'a mut Buffer, palette: Palette) -> Self {
        Self { buffer, palette }
    }

    /// Writes a text, cut to a width, and returns the column behind it. Nothing is written outside
    /// the frame.
    pub(super) fn put(&mut self, x: u16, y: u16, text: &str, style: Style, width: u16) -> u16 {
        let area = *self.buffer.area();
        if x >= area.right() || y >= area.bottom() {
            return x;
        }
        let room = area.right() - x;
        let (end, _) = self
            .buffer
            .set_stringn(x, y, text, width.min(room).into(), style);
        end
    }

    /// Applies a style to an area.
    pub(super) fn style(&mut self, area: Rect, style: Style) {
        self.buffer.set_style(area, style);
    }

    /// Draws a horizontal line.
    pub(super) fn rule(&mut self, area: Rect) {
        let line = "─".repeat(area.width.into());
        self.put(area.x, area.y, &line, self.palette.quiet(), area.width);
    }
}
