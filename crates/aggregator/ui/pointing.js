// Pointer and keyboard on the map.

/** Emphasizes the edges of the node under the pointer or with the focus, and moves the focus by arrow keys. */
export function followPointer(canvas) {
  canvas.addEventListener("keydown", moveFocus);
  for (const type of ["mouseover", "focusin"]) {
    canvas.addEventListener(type, (event) => emphasize(canvas, event.target));
  }
  for (const type of ["mouseleave", "focusout"]) canvas.addEventListener(type, () => emphasize(canvas, null));
}

// Shows the edges of the node under the pointer or with the focus, and fades all others.
function emphasize(canvas, target) {
  const node = target?.closest?.("[data-node]")?.dataset.node;
  canvas.classList.toggle("focused", node !== undefined);
  const near = new Set([node]);
  for (const edge of canvas.querySelectorAll(".edge")) {
    const { source, target: to } = edge.dataset;
    const isOn = source === node || to === node;
    edge.classList.toggle("on", isOn);
    if (isOn) near.add(source).add(to);
  }
  for (const box of canvas.querySelectorAll("[data-node]")) box.classList.toggle("near", near.has(box.dataset.node));
}

const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// Arrow keys move the focus to the nearest node in their direction; Delete hides the group that has the focus.
function moveFocus(event) {
  if (event.key === "Delete") event.target.closest(".top")?.querySelector(".hide").click();
  const direction = DIRECTIONS[event.key];
  const from = event.target.closest("[data-node]");
  if (!direction || !from) return;
  event.preventDefault();
  const start = middle(from);
  let best = null;
  for (const node of event.currentTarget.querySelectorAll("[data-node]")) {
    const { x, y } = middle(node);
    const [along, across] = [
      (x - start.x) * direction[0] + (y - start.y) * direction[1],
      Math.abs((x - start.x) * direction[1]) + Math.abs((y - start.y) * direction[0]),
    ];
    if (node === from || along <= 1) continue;
    const distance = along + 2 * across;
    if (best === null || distance < best.distance) best = { node, distance };
  }
  best?.node.focus();
}

function middle(element) {
  const { left, top, width, height } = element.getBoundingClientRect();
  return { x: left + width / 2, y: top + height / 2 };
}
