//! Tables: columns that share the width, and cells.

use super::paint::Canvas;
use crate::text::{cut_end, cut_start, width};
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

/// A column.
pub(super) struct Column {
    pub(super) title: &'static str,
    /// Width at 80 columns.
    pub(super) width: u16,
    /// Share of the space that is left.
    pub(super) grow: u16,
    pub(super) align: Align,
    /// The smallest width of the terminal at which the column is shown.
    pub(super) from: u16,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
    /// Left; a text that is too long loses its beginning.
    Path,
}

impl Column {
    pub(super) const fn new(title: &'static str, width: u16, align: Align) -> Self {
        Self {
            title,
            width,
            grow: 0,
            align,
            from: 0,
        }
    }

    pub(super) const fn grows(mut self, share: u16) -> Self {
        self.grow = share;
        self
    }

    pub(super) const fn from(mut self, width: u16) -> Self {
        self.from = width;
        self
    }
}

/// A cell.
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) style: Style,
}

impl Cell {
    pub(super) fn new(text: impl Into<String>, style: Style) -> Self {
        Self {
            text: text.into(),
            style,
        }
    }
}

/// Columns with their places on the screen.
pub(super) struct Layout<'a>(Vec<(u16, u16, &'a Column, usize)>);

impl<'a> Layout<'a> {
    /// Distributes a width to the columns. One cell is left at the left edge and between columns.
    pub(super) fn new(columns: &'a [Column], total: u16) -> Self {
        let all = columns.iter().enumerate();
        let shown: Vec<_> = all.filter(|(_, column)| column.from <= total).collect();
        let needed: u16 = shown.iter().map(|(_, column)| column.width + 1).sum();
        let mut shares: u16 = shown.iter().map(|(_, column)| column.grow).sum();
        // The last column may end at the right edge.
        let mut extra = i32::from(total) - i32::from(needed);
        let mut places = Vec::new();
        let mut x = 1;
        for (index, column) in shown {
            let grown = extra * i32::from(column.grow) / i32::from(shares.max(1));
            shares -= column.grow;
            extra -= grown;
            let width = i32::from(column.width) + grown;
            let width = u16::try_from(width).unwrap_or_default().max(1);
            places.push((x, width, column, index));
            x += width + 1;
        }
        Self(places)
    }

    /// Returns the width of a column; 0 if it is not shown.
    pub(super) fn width(&self, column: usize) -> usize {
        let mut places = self.0.iter();
        let place = places.find(|(_, _, _, index)| *index == column);
        place.map_or(0, |(_, width, _, _)| usize::from(*width))
    }

    pub(super) fn titles(&self, canvas: &mut Canvas<'_>, y: u16) {
        let style = canvas.palette.title();
        for (x, width, column, _) in &self.0 {
            put_aligned(canvas, (*x, y), *width, column.align, column.title, style);
        }
    }

    /// Draws a row with one cell per column, also for those that are not shown.
    pub(super) fn row(&self, canvas: &mut Canvas<'_>, y: u16, cells: &[Cell]) {
        for (x, width, column, index) in &self.0 {
            if let Some(Cell { text, style }) = cells.get(*index) {
                put_aligned(canvas, (*x, y), *width, column.align, text, *style);
            }
        }
    }
}

fn put_aligned(
    canvas: &mut Canvas<'_>,
    (x, y): (u16, u16),
    limit: u16,
    align: Align,
    text: &str,
    style: Style,
) {
    let cut = match align {
        Align::Left | Align::Right => cut_end(text, limit.into()),
        Align::Path => cut_start(text, limit.into()),
    };
    let free = limit.saturating_sub(u16::try_from(width(&cut)).unwrap_or(limit));
    let x = match align {
        Align::Right => x + free,
        Align::Left | Align::Path => x,
    };
    canvas.put(x, y, &cut, style, limit);
}

/// Draws the rows of a table that fit, so that the selected one is among them. `first` is the first
/// row that was drawn before.
pub(super) fn draw(
    canvas: &mut Canvas<'_>,
    area: Rect,
    layout: &Layout<'_>,
    rows: &[usize],
    selected: Option<usize>,
    first: &mut usize,
    cells: impl Fn(&Canvas<'_>, usize) -> Vec<Cell>,
) {
    layout.titles(canvas, area.y);
    let room = usize::from(area.height.saturating_sub(1));
    let at = selected.unwrap_or_default();
    *first = (*first).clamp((at + 1).saturating_sub(room), at);
    *first = (*first).min(rows.len().saturating_sub(room));
    let visible = rows.iter().enumerate().skip(*first).take(room);
    for ((position, row), y) in visible.zip(area.y + 1..) {
        layout.row(canvas, y, &cells(canvas, *row));
        if selected == Some(position) {
            let line = Rect {
                y,
                height: 1,
                ..area
            };
            canvas.style(line, canvas.palette.selected());
        }
    }
}
