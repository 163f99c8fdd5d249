//! Behaviour of whole templates; pieces are tested beside their code.
