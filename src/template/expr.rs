//! stub
use super::Env;
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ExprError(pub String);
#[derive(Default, Debug)]
pub struct Cache;
pub fn eval_bool(_code: &str, _env: &Env, _cache: &Cache) -> Result<bool, ExprError> {
    Ok(true)
}
