//! Parts that most steps leave as they are: states share them, and a copy is made of what is changed.

use std::ops::{Deref, Index, IndexMut};
use std::sync::Arc;

/// Some parts of a state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shared<T>(Vec<Arc<T>>);

impl<T: Clone> Shared<T> {
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(Arc::make_mut)
    }
}

impl<T> FromIterator<T> for Shared<T> {
    fn from_iter<I: IntoIterator<Item = T>>(parts: I) -> Self {
        Self(parts.into_iter().map(Arc::new).collect())
    }
}

impl<T> Deref for Shared<T> {
    type Target = [Arc<T>];

    fn deref(&self) -> &[Arc<T>] {
        &self.0
    }
}

impl<T> Index<usize> for Shared<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        &self.0[index]
    }
}

impl<T: Clone> IndexMut<usize> for Shared<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        Arc::make_mut(&mut self.0[index])
    }
}
