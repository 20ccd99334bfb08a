// Places boxes in columns from sources to destinations. A function of its arguments: the same graph has the same picture.

const SWEEPS = 4;
const LEVEL_ROUNDS = 40;

/**
 * Places `boxes` (`{id, width, height}`) that `links` (`[source id, target id]`) connect, in at most `width` pixels where
 * that is possible: `{places: Map of id to {x, y, column}, width, height}`.
 */
export function layout(boxes, links, width, { gapX = 110, gapY = 20 } = {}) {
  const neighbours = neighboursOf(boxes, links);
  const levels = levelsOf(boxes, neighbours);
  const ordered = [...boxes].sort((a, b) => levels.get(a.id) - levels.get(b.id) || (a.id < b.id ? -1 : 1));
  let columns = [ordered];
  for (let most = Math.min(boxes.length, 8); most > 1; most -= 1) {
    columns = cut(ordered, most, gapY);
    if (widthOf(columns, gapX) <= width) break;
  }
  if (widthOf(columns, gapX) > width) columns = cut(ordered, Math.min(2, boxes.length), gapY);
  order(columns, neighbours, gapY);
  return coordinates(columns, width, gapX, gapY);
}

function neighboursOf(boxes, links) {
  const neighbours = new Map(boxes.map(({ id }) => [id, { sources: new Set(), targets: new Set() }]));
  for (const [source, target] of links) {
    if (source === target || !neighbours.has(source) || !neighbours.has(target)) continue;
    neighbours.get(source).targets.add(target);
    neighbours.get(target).sources.add(source);
  }
  return neighbours;
}

// A box is one level behind the mean of its sources, and one before that of its targets.
function levelsOf(boxes, neighbours) {
  const levels = new Map(boxes.map(({ id }) => [id, 0]));
  for (let round = 0; round < LEVEL_ROUNDS; round += 1) {
    const next = new Map();
    for (const { id } of boxes) {
      const { sources, targets } = neighbours.get(id);
      const wanted = [
        ...[...sources].map((each) => levels.get(each) + 1),
        ...[...targets].map((each) => levels.get(each) - 1),
      ];
      next.set(id, wanted.length === 0 ? 0 : (levels.get(id) + mean(wanted)) / 2);
    }
    const middle = mean([...next.values()]);
    for (const [id, level] of next) levels.set(id, level - middle);
  }
  // Rounded, so that order does not depend on the last bits.
  for (const [id, level] of levels) levels.set(id, Math.round(level * 1000) / 1000);
  return levels;
}

// Cuts the sequence into columns of similar heights.
function cut(ordered, count, gap) {
  const total = ordered.reduce((sum, { height }) => sum + height + gap, 0);
  const columns = [];
  let height = 0;
  for (const box of ordered) {
    const column = Math.min(count - 1, Math.floor(((height + box.height / 2) / total) * count));
    (columns[column] ??= []).push(box);
    height += box.height + gap;
  }
  return columns.filter((column) => column !== undefined);
}

function widthOf(columns, gap) {
  return columns.reduce((sum, column) => sum + widest(column) + gap, -gap);
}

function widest(column) {
  return Math.max(...column.map(({ width }) => width));
}

// Orders each column by the mean position of the neighbours in other columns, so that fewer edges cross.
function order(columns, neighbours, gap) {
  const middles = new Map();
  const measure = (column) => {
    const height = heightOf(column, gap);
    let y = -height / 2;
    for (const box of column) {
      middles.set(box.id, y + box.height / 2);
      y += box.height + gap;
    }
  };
  for (const column of columns) {
    column.sort((a, b) => (a.id < b.id ? -1 : 1));
    measure(column);
  }
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    for (const column of sweep % 2 === 0 ? columns : [...columns].reverse()) {
      const own = new Set(column.map(({ id }) => id));
      const wanted = new Map();
      for (const { id } of column) {
        const { sources, targets } = neighbours.get(id);
        const others = [...sources, ...targets].filter((each) => !own.has(each)).map((each) => middles.get(each));
        wanted.set(id, others.length === 0 ? middles.get(id) : Math.round(mean(others)));
      }
      column.sort((a, b) => wanted.get(a.id) - wanted.get(b.id) || (a.id < b.id ? -1 : 1));
      measure(column);
    }
  }
}

function heightOf(column, gap) {
  return column.reduce((sum, { height }) => sum + height + gap, -gap);
}

function coordinates(columns, width, gapX, gapY) {
  const places = new Map();
  const tallest = Math.max(0, ...columns.map((column) => heightOf(column, gapY)));
  const used = columns.length === 0 ? 0 : widthOf(columns, gapX);
  // Room that is left goes between the columns, up to twice the gap.
  const spare = columns.length > 1 ? Math.min(gapX, Math.max(0, width - used) / (columns.length - 1)) : 0;
  let x = Math.max(0, (width - used - spare * (columns.length - 1)) / 2);
  columns.forEach((column, at) => {
    let y = (tallest - heightOf(column, gapY)) / 2;
    for (const box of column) {
      places.set(box.id, { x: Math.round(x + (widest(column) - box.width) / 2), y: Math.round(y), column: at });
      y += box.height + gapY;
    }
    x += widest(column) + gapX + spare;
  });
  return { places, width: Math.max(width, Math.ceil(used)), height: Math.ceil(tallest) };
}

function mean(numbers) {
  return numbers.length === 0 ? 0 : numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
}
