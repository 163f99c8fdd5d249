//! Tests of whole expressions.
