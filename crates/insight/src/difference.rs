//! The difference of two texts by line.

/// Largest product of both lengths in lines that is compared: a table of 4 MB. Longer texts are replaced as a whole.
const MOST_CELLS: usize = 1 << 20;

/// The lines of both texts in order, each with `-` (only in the old one), `+` (only in the new one) or a space in
/// front.
pub fn line_difference(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let mut text = String::new();
    let mut push = |mark: char, line: &str| {
        text.push(mark);
        text.push_str(line);
        text.push('\n');
    };
    let Some(common) = longest_common(&old, &new) else {
        old.iter().for_each(|line| push('-', line));
        new.iter().for_each(|line| push('+', line));
        return text;
    };
    let (mut i, mut j) = (0, 0);
    while i < old.len() || j < new.len() {
        let cell = |i: usize, j: usize| common[i * (new.len() + 1) + j];
        match (old.get(i), new.get(j)) {
            (Some(a), Some(b)) if a == b => {
                push(' ', a);
                (i, j) = (i + 1, j + 1);
            }
            (Some(a), b) if b.is_none() || cell(i + 1, j) >= cell(i, j + 1) => {
                push('-', a);
                i += 1;
            }
            (_, Some(b)) => {
                push('+', b);
                j += 1;
            }
            (_, None) => break,
        }
    }
    text
}

/// For each pair of positions, the length of the longest common subsequence of what follows. `None` if the texts are too
/// long.
fn longest_common(old: &[&str], new: &[&str]) -> Option<Vec<u32>> {
    let width = new.len() + 1;
    let cells = (old.len() + 1).checked_mul(width).filter(|cells| *cells <= MOST_CELLS)?;
    let mut common = vec![0_u32; cells];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i * width + j] = match old[i] == new[j] {
                true => common[(i + 1) * width + j + 1] + 1,
                false => common[(i + 1) * width + j].max(common[i * width + j + 1]),
            };
        }
    }
    Some(common)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_marks_each_line() {
        assert_eq!(line_difference("a\nb\nc\n", "a\nx\nc\nd\n"), " a\n-b\n+x\n c\n+d\n");
        assert_eq!(line_difference("", "a\n"), "+a\n");
        assert_eq!(line_difference("a\n", ""), "-a\n");
        assert_eq!(line_difference("a\n", "a\n"), " a\n");
        let long = "x\n".repeat(2_000);
        assert_eq!(line_difference(&long, &long).lines().count(), 4_000, "too long to compare");
    }
}
