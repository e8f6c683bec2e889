//! Computes the token positions and the boundaries of several token sequences that share one row.

/// Returns the position of each token within its sequence, counted from 0.
pub fn positions(sizes: &[u32]) -> Vec<i64> {
    let mut all = Vec::with_capacity(sizes.iter().map(|&size| size as usize).sum());
    for &size in sizes {
        all.extend(0..i64::from(size));
    }
    all
}

/// Returns the start of each sequence and the end of the last sequence, or None if a row has 2³¹ tokens or more.
pub fn bounds(sizes: &[u32]) -> Option<Vec<i32>> {
    let mut all = Vec::with_capacity(sizes.len() + 1);
    let mut end = 0_i32;
    all.push(end);
    for &size in sizes {
        end = i32::try_from(size).ok().and_then(|size| end.checked_add(size))?;
        all.push(end);
    }
    Some(all)
}
