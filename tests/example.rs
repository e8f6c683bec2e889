//! Tests the parser of TensorFlow examples with valid examples and with random bytes.

use proptest::prelude::*;
use torchdata_core::formats::example::{Example, Feature, FeatureKind};
use torchdata_core::formats::wire::{Fields, WireError};

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

fn field(number: u64, content: &[u8]) -> Vec<u8> {
    [varint(number << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

#[derive(Debug, Clone, PartialEq)]
enum Values {
    Bytes(Vec<Vec<u8>>),
    Floats(Vec<u32>),
    Integers(Vec<i64>),
}

fn encoded(values: &Values, packed: bool) -> Vec<u8> {
    let one_by_one = |number: u64, wire: u64, parts: Vec<Vec<u8>>| {
        let tagged: Vec<Vec<u8>> = parts.into_iter().map(|part| [varint(number << 3 | wire), part].concat()).collect();
        tagged.concat()
    };
    match values {
        Values::Bytes(values) => field(1, &values.iter().flat_map(|value| field(1, value)).collect::<Vec<_>>()),
        Values::Floats(values) => {
            let parts: Vec<Vec<u8>> = values.iter().map(|value| value.to_le_bytes().to_vec()).collect();
            field(2, &if packed { field(1, &parts.concat()) } else { one_by_one(1, 5, parts) })
        }
        Values::Integers(values) => {
            let parts: Vec<Vec<u8>> = values.iter().map(|value| varint(value.cast_unsigned())).collect();
            field(3, &if packed { field(1, &parts.concat()) } else { one_by_one(1, 0, parts) })
        }
    }
}

fn decoded(feature: &Feature<'_>) -> Result<Option<Values>, WireError> {
    let (mut floats, mut integers) = (vec![1.0], vec![1]);
    Ok(match feature.kind {
        None => None,
        Some(FeatureKind::Bytes) => Some(Values::Bytes(feature.parts.iter().map(|value| value.to_vec()).collect())),
        Some(FeatureKind::Float) => {
            feature.floats(&mut floats)?;
            Some(Values::Floats(floats.iter().map(|value| value.to_bits()).collect()))
        }
        Some(FeatureKind::Int64) => {
            feature.integers(&mut integers)?;
            Some(Values::Integers(integers))
        }
    })
}

fn entry(name: &str, value: &[u8]) -> Vec<u8> {
    field(1, &[field(1, name.as_bytes()), field(2, value)].concat())
}

fn values() -> impl Strategy<Value = Values> {
    prop_oneof![
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..4).prop_map(Values::Bytes),
        prop::collection::vec(any::<u32>(), 0..20).prop_map(Values::Floats),
        prop::collection::vec(any::<i64>(), 0..20).prop_map(Values::Integers),
    ]
}

proptest! {
    #[test]
    fn what_was_encoded_is_read(
        context in prop::collection::vec(("[a-zé]{0,8}", values(), any::<bool>()), 0..5),
        lists in prop::collection::vec(("[a-z]{0,8}", prop::collection::vec((values(), any::<bool>()), 0..4)), 0..3),
        unknown in 4u64..1000,
    ) {
        let features: Vec<u8> = context.iter().flat_map(|(name, it, packed)| entry(name, &encoded(it, *packed))).collect();
        let steps: Vec<u8> = lists
            .iter()
            .flat_map(|(name, steps)| {
                let steps: Vec<u8> = steps.iter().flat_map(|(it, packed)| field(1, &encoded(it, *packed))).collect();
                entry(name, &steps)
            })
            .collect();
        let record = [field(unknown, b"skipped"), field(1, &features), field(2, &steps)].concat();
        let example = Example::parse(&record, |_| true).unwrap();
        prop_assert_eq!(example.context.len(), context.len());
        for ((name, feature), (wanted, it, _)) in example.context.iter().zip(&context) {
            prop_assert_eq!(name, wanted);
            let found = decoded(feature).unwrap();
            prop_assert_eq!(found.as_ref(), Some(it));
        }
        prop_assert_eq!(example.lists.len(), lists.len());
        for ((name, features), (wanted, steps)) in example.lists.iter().zip(&lists) {
            prop_assert_eq!(name, wanted);
            let found: Vec<_> = features.iter().map(|feature| decoded(feature).unwrap().unwrap()).collect();
            let steps: Vec<_> = steps.iter().map(|(it, _)| it.clone()).collect();
            prop_assert_eq!(found, steps);
        }
        prop_assert_eq!(Example::parse(&record, |_| false).unwrap(), Example::default());
    }

    #[test]
    fn arbitrary_bytes_result_in_an_example_or_an_error(record in prop::collection::vec(any::<u8>(), 0..80)) {
        for record in [record.clone(), field(1, &record), field(1, &entry("x", &record)), field(2, &entry("x", &record))] {
            if let Ok(example) = Example::parse(&record, |_| true) {
                for (_, feature) in &example.context {
                    let _ = decoded(feature);
                }
            }
        }
    }
}

#[test]
fn repeated_messages_are_merged_and_the_last_alternative_is_used() {
    let (ints, more) = (encoded(&Values::Integers(vec![1]), true), encoded(&Values::Integers(vec![-2, 300]), false));
    let floats = encoded(&Values::Floats(vec![0]), true);
    let merged = |parts: &[&[u8]]| {
        let record = field(1, &entry("x", &parts.concat()));
        decoded(&Example::parse(&record, |_| true).unwrap().context[0].1).unwrap()
    };
    assert_eq!(merged(&[&ints, &more]), Some(Values::Integers(vec![1, -2, 300])));
    assert_eq!(merged(&[&ints, &floats]), Some(Values::Floats(vec![0])));
    assert_eq!(merged(&[&floats, &field(3, b"")]), Some(Values::Integers(vec![])));
    assert_eq!(merged(&[]), None);
}

#[test]
fn damaged_fields_are_errors() {
    for (bad, error) in [
        (&[5 << 3 | 3][..], WireError::Tag), // the parser does not support groups
        (&[0][..], WireError::Tag),
        (&[1 << 3 | 6][..], WireError::Tag),
        (&[0xff; 11][..], WireError::Varint),
        (&[0xff; 3][..], WireError::Truncated),
        (&[1 << 3 | 2, 200, 1, 0][..], WireError::Truncated),
    ] {
        assert_eq!(Fields::new(bad).collect::<Result<Vec<_>, _>>(), Err(error), "{bad:?}");
    }
}

#[test]
fn invalid_names_and_numbers_are_errors() {
    let record = field(1, &field(1, &field(1, b"\xff")));
    assert_eq!(Example::parse(&record, |_| true), Err(WireError::Name));
    for bad in [field(2, &field(1, b"abc")), field(3, &field(1, &[0x80])), field(3, &field(1, &[0xff; 11]))] {
        let record = field(1, &entry("x", &bad));
        assert!(decoded(&Example::parse(&record, |_| true).unwrap().context[0].1).is_err());
    }
}
