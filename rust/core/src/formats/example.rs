//! Parses `tf.train.Example` and `tf.train.SequenceExample` messages without copying their values.
//!
//! As the protocol buffer format requires, the parser skips unknown fields and merges repeated messages.

use crate::formats::wire::{Fields, WireError, WireValue};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureKind {
    Bytes,
    Float,
    Int64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Feature<'a> {
    /// The type of the values, or None if the feature is empty.
    pub kind: Option<FeatureKind>,
    /// The encoded values. One element of `parts` may encode several packed numbers.
    pub parts: Vec<&'a [u8]>,
}

impl<'a> Feature<'a> {
    pub fn floats(&self, out: &mut Vec<f32>) -> Result<(), WireError> {
        out.clear();
        for part in &self.parts {
            let (values, rest) = part.as_chunks::<4>();
            if !rest.is_empty() {
                return Err(WireError::Truncated);
            }
            out.extend(values.iter().map(|&value| f32::from_le_bytes(value)));
        }
        Ok(())
    }

    pub fn integers(&self, out: &mut Vec<i64>) -> Result<(), WireError> {
        out.clear();
        for part in &self.parts {
            crate::formats::wire::varints(part, out)?;
        }
        Ok(())
    }

    fn merge(&mut self, message: &'a [u8]) -> Result<(), WireError> {
        for field in Fields::new(message) {
            let (kind, list) = match field? {
                (1, WireValue::Bytes(list)) => (FeatureKind::Bytes, list),
                (2, WireValue::Bytes(list)) => (FeatureKind::Float, list),
                (3, WireValue::Bytes(list)) => (FeatureKind::Int64, list),
                _ => continue,
            };
            if self.kind != Some(kind) {
                *self = Self { kind: Some(kind), parts: Vec::new() }; // a list of another type replaces earlier values
            }
            for value in Fields::new(list) {
                match (kind, value?) {
                    (_, (1, WireValue::Bytes(part)))
                    | (FeatureKind::Float, (1, WireValue::Fixed32(part)))
                    | (FeatureKind::Int64, (1, WireValue::Varint(part))) => self.parts.push(part),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// If a name occurs several times, only the last feature with this name is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Example<'a> {
    pub context: Vec<(&'a str, Feature<'a>)>,
    /// The feature lists of a SequenceExample, which contain one feature per step of the sequence.
    pub lists: Vec<(&'a str, Vec<Feature<'a>>)>,
}

impl<'a> Example<'a> {
    /// Parses a record, and keeps the features that `wanted` selects by name.
    pub fn parse(record: &'a [u8], wanted: impl Fn(&str) -> bool) -> Result<Self, WireError> {
        let mut example = Self::default();
        for field in Fields::new(record) {
            match field? {
                (1, WireValue::Bytes(features)) => {
                    for entry in Fields::new(features) {
                        let (1, WireValue::Bytes(entry)) = entry? else { continue };
                        let mut feature = Feature::default();
                        if let Some(name) = named(entry, &wanted, |value| feature.merge(value))? {
                            example.context.push((name, feature));
                        }
                    }
                }
                (2, WireValue::Bytes(lists)) => {
                    for entry in Fields::new(lists) {
                        let (1, WireValue::Bytes(entry)) = entry? else { continue };
                        let mut steps = Vec::new();
                        if let Some(name) = named(entry, &wanted, |value| merge_steps(&mut steps, value))? {
                            example.lists.push((name, steps));
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(example)
    }
}

fn named<'a>(
    entry: &'a [u8],
    wanted: impl Fn(&str) -> bool,
    mut merge: impl FnMut(&'a [u8]) -> Result<(), WireError>,
) -> Result<Option<&'a str>, WireError> {
    let mut name = "";
    for field in Fields::new(entry) {
        if let (1, WireValue::Bytes(bytes)) = field? {
            name = std::str::from_utf8(bytes).map_err(|_| WireError::Name)?;
        }
    }
    if !wanted(name) {
        return Ok(None);
    }
    for field in Fields::new(entry) {
        if let (2, WireValue::Bytes(value)) = field? {
            merge(value)?;
        }
    }
    Ok(Some(name))
}

fn merge_steps<'a>(steps: &mut Vec<Feature<'a>>, list: &'a [u8]) -> Result<(), WireError> {
    for step in Fields::new(list) {
        if let (1, WireValue::Bytes(message)) = step? {
            let mut feature = Feature::default();
            feature.merge(message)?;
            steps.push(feature);
        }
    }
    Ok(())
}
