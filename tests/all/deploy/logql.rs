//! A parser of the LogQL that the dashboard and the pages use: log queries, range aggregations, aggregations and `unless`.
//! Anything else is an error, so that an expression is either checked in full or refused.

/// The result of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Query {
    Lines,
    Series,
}

/// Parses an expression, which may have variables of Grafana in place of durations and in strings.
pub(super) fn parse(expression: &str) -> Result<Query, String> {
    let mut parser = Parser { tokens: tokens(expression)? };
    let query = match parser.peek() {
        Some("{") => parser.selector().and_then(|()| parser.stages()).map(|_| Query::Lines),
        _ => parser.series().map(|()| Query::Series),
    }?;
    match parser.peek() {
        None => Ok(query),
        Some(rest) => Err(format!("'{rest}' after the end")),
    }
}

struct Parser<'a> {
    /// In reverse.
    tokens: Vec<&'a str>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.last().copied()
    }

    fn next(&mut self) -> &'a str {
        self.tokens.pop().unwrap_or("the end")
    }

    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        let found = self.next();
        if found == wanted { Ok(()) } else { Err(format!("expected '{wanted}', got '{found}'")) }
    }

    fn skip(&mut self, wanted: &str) -> bool {
        let is_next = self.peek() == Some(wanted);
        if is_next {
            self.tokens.pop();
        }
        is_next
    }

    fn series(&mut self) -> Result<(), String> {
        self.aggregation()?;
        while self.skip("unless") {
            self.aggregation()?;
        }
        Ok(())
    }

    fn aggregation(&mut self) -> Result<(), String> {
        match self.next() {
            "count_over_time" => self.range(false),
            "sum_over_time" => self.range(true),
            "topk" => {
                self.expect("(")?;
                self.word(|c| c.is_ascii_digit(), "a number")?;
                self.expect(",")?;
                self.series()?;
                self.expect(")")
            }
            "sum" => {
                if self.skip("by") {
                    self.list("(", ")", |parser| parser.name())?;
                }
                self.expect("(")?;
                self.series()?;
                self.expect(")")
            }
            other => Err(format!("'{other}' is not an aggregation")),
        }
    }

    /// `is_unwrapped`: the aggregation is of values, which a last stage unwraps, and not of lines.
    fn range(&mut self, is_unwrapped: bool) -> Result<(), String> {
        self.expect("(")?;
        self.selector()?;
        let unwraps = self.stages()?;
        if unwraps != is_unwrapped {
            return Err(format!("unwrap: expected {is_unwrapped}, got {unwraps}"));
        }
        self.expect("[")?;
        self.duration()?;
        self.expect("]")?;
        if self.skip("offset") {
            self.duration()?;
        }
        self.expect(")")
    }

    fn selector(&mut self) -> Result<(), String> {
        self.list("{", "}", Parser::matcher)
    }

    /// Whether the last stage unwraps a label.
    fn stages(&mut self) -> Result<bool, String> {
        while self.skip("|") {
            if self.skip("unwrap") {
                return self.name().map(|()| true);
            }
            self.matcher()?;
        }
        Ok(false)
    }

    fn matcher(&mut self) -> Result<(), String> {
        self.name()?;
        let operator = self.next();
        if !["=", "!=", "=~", "!~"].contains(&operator) {
            return Err(format!("'{operator}' is not an operator"));
        }
        let value = self.next();
        if value.starts_with('"') { Ok(()) } else { Err(format!("expected a string, got '{value}'")) }
    }

    fn name(&mut self) -> Result<(), String> {
        self.word(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_', "a label")
    }

    fn duration(&mut self) -> Result<(), String> {
        let text = self.next();
        let number = text.trim_end_matches(['s', 'm', 'h', 'd']);
        let is_duration = number.len() + 1 == text.len() && number.bytes().all(|b| b.is_ascii_digit());
        let is_valid = (is_duration && !number.is_empty()) || text.starts_with("$__");
        if is_valid { Ok(()) } else { Err(format!("'{text}' is not a duration")) }
    }

    fn word(&mut self, is_part: impl Fn(char) -> bool, what: &str) -> Result<(), String> {
        let text = self.next();
        if text.chars().all(is_part) { Ok(()) } else { Err(format!("expected {what}, got '{text}'")) }
    }

    fn list(
        &mut self,
        open: &str,
        close: &str,
        mut item: impl FnMut(&mut Parser<'a>) -> Result<(), String>,
    ) -> Result<(), String> {
        self.expect(open)?;
        item(self)?;
        while self.skip(",") {
            item(self)?;
        }
        self.expect(close)
    }
}

/// The tokens of an expression, the last one first.
fn tokens(expression: &str) -> Result<Vec<&str>, String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    let (mut tokens, mut rest) = (Vec::new(), expression.trim_start());
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => rest[1..].find('"').ok_or("a string without an end")? + 2,
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ if ["!=", "=~", "!~"].iter().any(|operator| rest.starts_with(operator)) => 2,
            _ => first.len_utf8(),
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens.reverse();
    Ok(tokens)
}

#[test]
fn parser_refuses_what_loki_would_refuse() {
    for (expression, query) in [
        (r#"{a="b", c=~"$d"} | e!="" | f="g""#, Query::Lines),
        (
            r#"topk(5, sum by (a, b) (count_over_time({a="b"}[$__range])) unless sum(count_over_time({a="b"} [7d] offset 7d)))"#,
            Query::Series,
        ),
        (r#"sum(sum_over_time({a="b"} | c="d" | unwrap e [5m]))"#, Query::Series),
    ] {
        assert_eq!(parse(expression), Ok(query), "{expression}");
    }
    for expression in [
        "",
        "{}",
        r#"{a="b""#,
        r#"{a="b} | c="d""#,
        r#"{a=b}"#,
        r#"{a="b"} | | c="d""#,
        r#"{a=="b"}"#,
        r#"sum(count_over_time({a="b"}))"#,
        r#"sum(count_over_time({a="b"}[week]))"#,
        r#"sum(count_over_time({a="b"} | unwrap c [1h]))"#,
        r#"sum(sum_over_time({a="b"}[1h]))"#,
        r#"sum(sum_over_time({a="b"} | unwrap c | d="e" [1h]))"#,
        r#"sum by (a (count_over_time({a="b"}[1h]))"#,
        r#"topk(sum(count_over_time({a="b"}[1h])))"#,
        r#"sum(count_over_time({a="b"}[1h])))"#,
    ] {
        assert!(parse(expression).is_err(), "{expression}");
    }
}
