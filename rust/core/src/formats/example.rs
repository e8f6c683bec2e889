//! `tf.train.Example` and `tf.train.SequenceExample`, read from their protocol buffers without copying.
//!
//! Both are maps from names to features; a SequenceExample has one of lists of features beside it (see TensorFlow's
//! `example.proto` and `feature.proto`). The fields that both have bear the same number, so one reader does for both.
//! As protocol buffers want it, fields that are not known are skipped, messages that appear twice are merged, and lists
//! of numbers may be packed or not.

use crate::formats::wire::{Fields, Value, WireError};

/// The type of a feature's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Strings of bytes.
    Bytes,
    /// 32-bit floats.
    Float,
    /// 64-bit integers.
    Int64,
}

/// The values of one feature, as they lie in the record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Feature<'a> {
    kind: Option<Kind>,
    /// Of bytes one value each; of numbers one or more, in their encoding.
    parts: Vec<&'a [u8]>,
}

impl<'a> Feature<'a> {
    /// The values' type; None if the feature has no list of values, not even an empty one.
    pub fn kind(&self) -> Option<Kind> {
        self.kind
    }

    /// The strings of a feature of bytes.
    pub fn bytes(&self) -> &[&'a [u8]] {
        &self.parts
    }

    /// Puts the values of a feature of floats into `out`, which is emptied first.
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

    /// Puts the values of a feature of integers into `out`, which is emptied first.
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
                (1, Value::Bytes(list)) => (Kind::Bytes, list),
                (2, Value::Bytes(list)) => (Kind::Float, list),
                (3, Value::Bytes(list)) => (Kind::Int64, list),
                _ => continue,
            };
            if self.kind != Some(kind) {
                *self = Self { kind: Some(kind), parts: Vec::new() }; // of alternatives the last one counts
            }
            for value in Fields::new(list) {
                match (kind, value?) {
                    (_, (1, Value::Bytes(part)))
                    | (Kind::Float, (1, Value::Fixed32(part)))
                    | (Kind::Int64, (1, Value::Varint(part))) => self.parts.push(part),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// A record of features. If a name appears more than once, the last one counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Example<'a> {
    /// The features of an Example; of a SequenceExample those that are the same for the whole sequence.
    pub context: Vec<(&'a str, Feature<'a>)>,
    /// Features of a SequenceExample that have a value per step.
    pub lists: Vec<(&'a str, Vec<Feature<'a>>)>,
}

impl<'a> Example<'a> {
    /// Reads a record; features whose name is not `wanted` are passed over.
    pub fn parse(record: &'a [u8], wanted: impl Fn(&str) -> bool) -> Result<Self, WireError> {
        let mut example = Self::default();
        for field in Fields::new(record) {
            match field? {
                (1, Value::Bytes(features)) => {
                    for entry in Fields::new(features) {
                        let (1, Value::Bytes(entry)) = entry? else { continue };
                        let mut feature = Feature::default();
                        if let Some(name) = named(entry, &wanted, |value| feature.merge(value))? {
                            example.context.push((name, feature));
                        }
                    }
                }
                (2, Value::Bytes(lists)) => {
                    for entry in Fields::new(lists) {
                        let (1, Value::Bytes(entry)) = entry? else { continue };
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

/// The name of an entry of a map, if it is wanted; then `merge` has had the entry's value.
fn named<'a>(
    entry: &'a [u8],
    wanted: impl Fn(&str) -> bool,
    mut merge: impl FnMut(&'a [u8]) -> Result<(), WireError>,
) -> Result<Option<&'a str>, WireError> {
    let mut name = "";
    for field in Fields::new(entry) {
        if let (1, Value::Bytes(bytes)) = field? {
            name = std::str::from_utf8(bytes).map_err(|_| WireError::Name)?;
        }
    }
    if !wanted(name) {
        return Ok(None);
    }
    for field in Fields::new(entry) {
        if let (2, Value::Bytes(value)) = field? {
            merge(value)?;
        }
    }
    Ok(Some(name))
}

fn merge_steps<'a>(steps: &mut Vec<Feature<'a>>, list: &'a [u8]) -> Result<(), WireError> {
    for step in Fields::new(list) {
        if let (1, Value::Bytes(message)) = step? {
            let mut feature = Feature::default();
            feature.merge(message)?;
            steps.push(feature);
        }
    }
    Ok(())
}
