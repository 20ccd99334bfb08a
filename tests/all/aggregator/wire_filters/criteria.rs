//! Random filters, whose expected matches are computed by evaluating each criterion on every flow.

use tests::grpc_bytes::{FieldValue, FieldValues, Writer};

use super::traffic::Random;

/// A value of a filter's field, and the flows that it matches.
pub(super) struct Criterion {
    field: u32,
    value: FieldValue,
    matches: Vec<bool>,
}

/// Criteria on flows of one type.
pub(super) struct Criteria<'a, F> {
    flows: &'a [F],
    pub(super) criteria: Vec<Criterion>,
}

/// A filter, and the flows that it matches.
pub(super) struct DrawnFilter {
    pub(super) filter: Writer,
    pub(super) matches: Vec<bool>,
    pub(super) fields: Vec<u32>,
}

impl<'a, F> Criteria<'a, F> {
    pub(super) fn new(flows: &'a [F]) -> Criteria<'a, F> {
        Criteria { flows, criteria: Vec::new() }
    }

    /// Adds a criterion, and evaluates it on every flow.
    pub(super) fn add(&mut self, field: u32, value: FieldValue, is_match: impl Fn(&F) -> bool) {
        let matches = self.flows.iter().map(is_match).collect();
        self.criteria.push(Criterion { field, value, matches });
    }

    pub(super) fn text(&mut self, field: u32, text: &str, is_match: impl Fn(&F) -> bool) {
        self.add(field, FieldValue::Text(text.to_owned()), is_match);
    }

    pub(super) fn number(&mut self, field: u32, number: i64, is_match: impl Fn(&F) -> bool) {
        self.add(field, FieldValue::Number(number), is_match);
    }

    /// Fields that have criteria.
    pub(super) fn fields(&self) -> Vec<u32> {
        let mut fields: Vec<u32> = self.criteria.iter().map(|criterion| criterion.field).collect();
        fields.sort_unstable();
        fields.dedup();
        fields
    }

    /// Draws a filter of up to `most_fields` fields with one to three values each; fields in `single` have one value.
    pub(super) fn draw(&self, random: &mut Random, most_fields: usize, single: &[u32]) -> DrawnFilter {
        let all = self.fields();
        let (mut values, mut fields) = (FieldValues::default(), Vec::new());
        let mut matches = vec![true; self.flows.len()];
        for _ in 0..=random.below(most_fields) {
            let field = random.pick(&all);
            if fields.contains(&field) {
                continue;
            }
            fields.push(field);
            let of_field: Vec<&Criterion> = self.criteria.iter().filter(|criterion| criterion.field == field).collect();
            let count = if single.contains(&field) { 1 } else { 1 + random.below(3) };
            let mut any = vec![false; self.flows.len()];
            for _ in 0..count {
                let Criterion { field, value, matches } = random.pick(&of_field);
                values.add(*field, value.clone());
                any.iter_mut().zip(matches).for_each(|(any, matches)| *any |= matches);
            }
            matches.iter_mut().zip(any).for_each(|(all, any)| *all &= any);
        }
        DrawnFilter { filter: values.encode(random.chance(50)), matches, fields }
    }
}

/// For each field, the number of filters with it in sets of filters that match some flows but not all.
pub(super) struct Coverage {
    fields: std::collections::BTreeMap<u32, usize>,
    pub(super) partial: usize,
}

impl Coverage {
    pub(super) fn new() -> Coverage {
        Coverage { fields: std::collections::BTreeMap::new(), partial: 0 }
    }

    pub(super) fn record<'a>(&mut self, filters: impl Iterator<Item = &'a DrawnFilter>, matched: usize, of: usize) {
        if (1..of).contains(&matched) {
            self.partial += 1;
            for field in filters.flat_map(|filter| &filter.fields) {
                *self.fields.entry(*field).or_default() += 1;
            }
        }
    }

    /// Asserts that each field has at least one count per hundred sets, and that most sets match some, not all flows.
    pub(super) fn assert_all(&self, fields: &[u32], sets: usize) {
        let count = |field: &u32| self.fields.get(field).copied().unwrap_or(0);
        let rare: Vec<&u32> = fields.iter().filter(|field| count(field) * 100 < sets).collect();
        assert!(rare.is_empty(), "fields {rare:?} are rare in {} sets that match some flows", self.partial);
        assert!(self.partial * 2 > sets, "only {} of {sets} sets match some flows and not all", self.partial);
    }
}
