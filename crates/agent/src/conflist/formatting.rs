//! Formatting of a list: an added entry is formatted like its neighbour.

use serde_json::Value;

use super::document::ConflistPlugin;

pub(super) struct Style {
    /// White space after colons, and after commas within a line.
    space: &'static str,
    layout: Layout,
}

enum Layout {
    OneLine,
    Lines {
        newline: &'static str,
        /// White space before a field.
        field: String,
        /// White space before the closing brace.
        close: String,
    },
}

/// The white space that ends at `end`.
pub(super) fn lead(text: &str, end: usize) -> &str {
    let head = &text[..end];
    &head[head.trim_end_matches([' ', '\t', '\r', '\n']).len()..]
}

impl Style {
    /// Detects the formatting of the plugin's object.
    pub(super) fn of(text: &str, plugin: &ConflistPlugin) -> Style {
        let span = &plugin.span;
        let space = match plugin.first_value {
            Some(at) if text[..at].ends_with(':') => "",
            Some(_) | None => " ",
        };
        let before_close = lead(text, span.end - 1);
        let Some((_, close)) = before_close.rsplit_once('\n') else { return Style { space, layout: Layout::OneLine } };
        let behind_open = &text[span.start + 1..span.end];
        let before_field = &behind_open[..behind_open.len() - behind_open.trim_start().len()];
        let field = match before_field.rsplit_once('\n') {
            Some((_, indentation)) => indentation.to_owned(),
            None => format!("{close}  "),
        };
        let newline = if before_close.contains("\r\n") { "\r\n" } else { "\n" };
        Style { space, layout: Layout::Lines { newline, field, close: close.to_owned() } }
    }

    pub(super) fn write(&self, fields: &[(&str, Value)]) -> String {
        let space = self.space;
        let fields: Vec<String> = fields.iter().map(|(key, value)| format!("\"{key}\":{space}{value}")).collect();
        match &self.layout {
            Layout::OneLine => format!("{{{}}}", fields.join(&format!(",{space}"))),
            Layout::Lines { newline, field, close } => {
                let between = format!(",{newline}{field}");
                format!("{{{newline}{field}{}{newline}{close}}}", fields.join(&between))
            }
        }
    }
}
