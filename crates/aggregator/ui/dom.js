// Builds elements. Text only ever becomes text nodes: names in records are chosen by others and may be markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: `h("td.number", { title }, "5")`. Properties that begin with `on` are event listeners. */
export function h(tag, properties = {}, ...children) {
  return build((name) => document.createElement(name), tag, properties, children);
}

/** An SVG element. */
export function svg(tag, properties = {}, ...children) {
  return build((name) => document.createElementNS(SVG, name), tag, properties, children);
}

function build(create, tag, properties, children) {
  const [name, ...classes] = tag.split(".");
  const element = create(name);
  element.classList.add(...classes);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Moves an element; the Content-Security-Policy refuses style attributes, but not this. */
export function place(element, styles) {
  Object.assign(element.style, styles);
  return element;
}

/**
 * Replaces the children of `root`. The focus, scroll positions and open details stay with elements that have the same
 * `data-key`.
 */
export function replace(root, ...children) {
  const focus = root.contains(document.activeElement) ? document.activeElement : null;
  const caret = focus instanceof HTMLInputElement && focus.type !== "checkbox" ? focus.selectionStart : null;
  const text = caret === null ? null : focus.value;
  const scrolls = new Map();
  for (const element of root.querySelectorAll("[data-scroll]")) {
    scrolls.set(element.dataset.scroll, [element.scrollLeft, element.scrollTop]);
  }
  const details = new Map([...root.querySelectorAll("details[data-key]")].map(({ dataset, open }) => [dataset.key, open]));
  root.replaceChildren();
  append(root, children);
  for (const element of root.querySelectorAll("[data-scroll]")) {
    const [left, top] = scrolls.get(element.dataset.scroll) ?? [0, 0];
    element.scrollTo(left, top);
  }
  for (const element of root.querySelectorAll("details[data-key]")) {
    element.open = details.get(element.dataset.key) ?? element.open;
  }
  const key = focus?.dataset.key;
  const next = key && [...root.querySelectorAll("[data-key]")].find((element) => element.dataset.key === key);
  if (!next) return;
  next.focus({ preventScroll: true });
  if (caret !== null && next instanceof HTMLInputElement) {
    next.value = text;
    next.setSelectionRange(caret, caret);
  }
}
