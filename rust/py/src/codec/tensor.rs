//! Encodes and decodes tensors that are completely described by element type, shape, strides and elements.

use pyo3::prelude::*;
use torchdata_core::strided::Strided;

use super::dlpack::{ElementType, Exported, reach};
use super::malformed;

pub struct Layout {
    /// The strides of the decoded tensor in elements, or None if the elements are contiguous.
    pub strides: Option<Vec<i64>>,
    /// The layout of the elements in memory if there are gaps between elements.
    pub strided: Option<Strided>,
}

impl Layout {
    pub fn of(tensor: &Exported<'_>) -> PyResult<Option<Self>> {
        if tensor.is_contiguous() {
            return Ok(Some(Self { strides: None, strided: None }));
        }
        let strides = tensor.strides()?;
        if tensor.reach() <= tensor.len() {
            return Ok(Some(Self { strides: Some(strides), strided: None }));
        }
        let dense = without_gaps(tensor.size, tensor.shape(), &strides);
        Ok(dense.map(|(strided, strides)| Self { strides: Some(strides), strided: Some(strided) }))
    }
}

/// Returns the layout for a copy without gaps between the elements, and the strides of this copy. The copy keeps the
/// order of the dimensions in memory, as `torch.clone` does. Returns None if several indices of a dimension refer to
/// the same element.
fn without_gaps(size: usize, shape: &[i64], strides: &[i64]) -> Option<(Strided, Vec<i64>)> {
    if shape.iter().zip(strides).any(|(&count, &stride)| stride == 0 && count > 1) {
        return None;
    }
    let mut inwards: Vec<usize> = (0..shape.len()).collect();
    inwards.sort_by_key(|&axis| std::cmp::Reverse((strides[axis], shape[axis])));
    let axes = inwards.iter().map(|&axis| (shape[axis] as usize, strides[axis] as isize * size as isize));
    let strided = Strided::new(size, axes)?;
    let (mut dense, mut next) = (vec![0; shape.len()], 1);
    for &axis in inwards.iter().rev() {
        dense[axis] = next;
        next *= shape[axis];
    }
    Some((strided, dense))
}

pub fn write(payload: &mut Vec<u8>, element: ElementType, shape: &[i64], strides: Option<&[i64]>) {
    payload.extend_from_slice(&[element.code, element.bits, shape.len() as u8, u8::from(strides.is_some())]);
    for extent in shape.iter().chain(strides.unwrap_or_default()) {
        payload.extend_from_slice(&extent.to_le_bytes());
    }
}

pub struct Description {
    pub element: ElementType,
    pub extents: Vec<i64>,
    pub len: usize,
}

pub fn read<'a>(mut take: impl FnMut(usize) -> PyResult<&'a [u8]>) -> PyResult<Description> {
    let &[code, bits, dimensions, has_strides] = take(4)? else { return Err(malformed()) };
    let element = ElementType { code, bits, lanes: 1 };
    let dimensions = usize::from(dimensions);
    let sent = if has_strides == 0 { dimensions } else { 2 * dimensions };
    let mut extents = Vec::with_capacity(2 * dimensions);
    for extent in take(8 * sent)?.chunks_exact(8) {
        extents.push(i64::from_le_bytes(extent.try_into().expect("chunks of eight bytes")));
    }
    if has_strides == 0 {
        extents.resize(2 * dimensions, 0);
        let mut next = 1_i64;
        for axis in (0..dimensions).rev() {
            extents[dimensions + axis] = next;
            next = next.checked_mul(extents[axis]).ok_or_else(malformed)?;
        }
    }
    let (shape, strides) = extents.split_at(dimensions);
    let len = element.size().and_then(|size| reach(size, shape, strides)).ok_or_else(malformed)?;
    Ok(Description { element, extents, len })
}
