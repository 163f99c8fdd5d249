//! What templates render, end to end; the vectors under `tests/` hold the long list.
