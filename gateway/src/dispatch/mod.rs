//! dispatch: decision → upstream exchange.
