// Address of a view: path and parameters in the URL fragment. Views read it when they are drawn, and update it while
// they are used.

let drawn = null;

/** Returns the parts and parameters of the current address. */
export function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { parts, params: new URLSearchParams(query) };
}

/** Reports whether the address differs from the drawn one, and sets it as drawn. */
export function isChanged() {
  const differs = drawn !== location.hash;
  drawn = location.hash;
  return differs;
}

/** Forces the current view to be drawn again. */
export function invalidate() {
  drawn = null;
}

/** Writes a view's parameters to the address without drawing the view again. */
export function setAddress(path, params) {
  const given = params.filter(([, value]) => value);
  const query = new URLSearchParams(given).toString();
  drawn = `#/${path}${query && `?${query}`}`;
  history.replaceState(null, "", drawn);
}
