//! ratatui's output by crossterm, for the few styles of the view.
//!
//! The published backend of both has all styles, and brings eleven more crates.

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{self, Clear};
use crossterm::{execute, queue};
use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color as RatatuiColor, Modifier};
use std::io::{self, BufWriter, Stdout, Write as _, stdout};

/// Attributes of the view's styles.
const ATTRIBUTES: [(Modifier, Attribute); 3] = [
    (Modifier::BOLD, Attribute::Bold),
    (Modifier::DIM, Attribute::Dim),
    (Modifier::REVERSED, Attribute::Reverse),
];

/// Standard output.
pub(crate) struct Output(BufWriter<Stdout>);

impl Output {
    pub(crate) fn new() -> Self {
        Self(BufWriter::new(stdout()))
    }

    fn set_style(&mut self, colour: RatatuiColor, modifier: Modifier) -> io::Result<()> {
        queue!(self.0, SetAttribute(Attribute::Reset))?;
        for (own, attribute) in ATTRIBUTES {
            if modifier.contains(own) {
                queue!(self.0, SetAttribute(attribute))?;
            }
        }
        // The dark ones are the terminal's usual ones (ECMA-48 section 8.3.117, 30 to 37).
        let colour = match colour {
            RatatuiColor::Red => Color::DarkRed,
            RatatuiColor::Green => Color::DarkGreen,
            RatatuiColor::Yellow => Color::DarkYellow,
            RatatuiColor::Cyan => Color::DarkCyan,
            _ => return Ok(()),
        };
        queue!(self.0, SetForegroundColor(colour))
    }
}

impl Backend for Output {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, cells: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut style = None;
        let mut next = None;
        for (x, y, cell) in cells {
            if next != Some((x, y)) {
                queue!(self.0, MoveTo(x, y))?;
            }
            // After a character of two cells, the next cell is given with its place.
            next = Some((x + 1, y));
            if style != Some((cell.fg, cell.modifier)) {
                self.set_style(cell.fg, cell.modifier)?;
                style = Some((cell.fg, cell.modifier));
            }
            queue!(self.0, Print(cell.symbol()))?;
        }
        queue!(self.0, SetAttribute(Attribute::Reset), ResetColor)
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        execute!(self.0, Hide)
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        execute!(self.0, Show)
    }

    /// The terminal is not asked: the thread of keys would take its answer.
    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        execute!(self.0, MoveTo(x, y))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        let region = match region {
            ClearType::All => terminal::ClearType::All,
            ClearType::AfterCursor => terminal::ClearType::FromCursorDown,
            ClearType::BeforeCursor => terminal::ClearType::FromCursorUp,
            ClearType::CurrentLine => terminal::ClearType::CurrentLine,
            ClearType::UntilNewLine => terminal::ClearType::UntilNewLine,
        };
        execute!(self.0, Clear(region))
    }

    fn size(&self) -> io::Result<Size> {
        terminal::size().map(|(width, height)| Size { width, height })
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize {
            columns_rows: self.size()?,
            pixels: Size::ZERO,
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
