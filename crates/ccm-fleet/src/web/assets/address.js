// The address of a view. Everything that can be seen has one: views read it when they are drawn,
// and write it while they are used. Knows no view.

let shown = null;

/** Returns the parts and parameters of the present address. */
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

/** Reports whether the address differs from what is shown, and takes it as shown from now on. */
export function isNew() {
  const differs = shown !== location.hash;
  shown = location.hash;
  return differs;
}

/** Lets the present view be drawn anew. */
export function forget() {
  shown = null;
}

/** Puts a view's parameters into the address; the view stays as it is. */
export function remember(path, params) {
  const kept = params.filter(([, value]) => value);
  const query = new URLSearchParams(kept).toString();
  shown = `#/${path}${query && `?${query}`}`;
  history.replaceState(null, "", shown);
}
