// The page: its head and switches, and what keys and pointer do.

const page = JSON.parse(document.getElementById('data').textContent);
const panels = page.panels.map((packed) => new Panel(packed, page.ops, page.changes));
const painter = new Painter(panels, page);
const plot = document.getElementById('plot');
const tip = document.getElementById('tip');
let focus = null; // the box that is pointed at, or reached by keys
let note = null; // what is said where no box is: texts, and where
let follow = null; // the micro-batch that is followed
let waiting = false;

function make(tag, text = '', parent = null) {
  const element = document.createElement(tag);
  element.textContent = text;
  parent?.append(element);
  return element;
}

function head() {
  const header = document.getElementById('head');
  panels.forEach((panel, place) => {
    make(place ? 'h2' : 'h1', panels.length > 1 ? `${panel.name}: ${panel.title}` : panel.title, header);
    const facts = make('dl', '', header);
    facts.className = 'facts';
    for (const [name, value] of panel.facts) {
      const fact = make('div', '', facts);
      make('dt', name, fact);
      make('dd', value, fact);
    }
    if (panel.problems.length) {
      const list = make('ul', '', header);
      list.className = 'problems';
      for (const problem of panel.problems) make('li', `ILLEGAL: ${problem}`, list);
      if (panel.moreProblems) make('li', `and ${panel.moreProblems} more of this kind`, list);
    }
  });
}

function switches() {
  const used = new Set();
  for (const { boxes } of panels) {
    boxes.op.forEach((op, box) => boxes.end[box] > boxes.start[box] && used.add(op));
  }
  const ops = document.getElementById('ops');
  page.ops.forEach((op, number) => {
    if (!used.has(number)) return;
    const label = make('label', '', ops);
    label.title = op.meaning;
    const box = make('input', '', label);
    box.type = 'checkbox';
    box.checked = true;
    box.name = op.name;
    box.addEventListener('change', () => {
      if (box.checked) painter.hidden.delete(number);
      else painter.hidden.add(number);
      redraw();
    });
    const swatch = make('span', '', label);
    swatch.className = 'swatch';
    swatch.style.background = op.fill;
    make('span', op.name, label);
  });
  for (const name of ['transfers', 'memory']) {
    document.getElementById(name).addEventListener('change', (event) => {
      painter.show[name] = event.target.checked;
      redraw();
    });
  }
  const grouping = document.getElementById('grouping');
  grouping.value = page.grouping;
  grouping.addEventListener('change', () => {
    painter.grouping = grouping.value;
    painter.layout();
    keepInside();
    redraw();
  });
  document.getElementById('fit').addEventListener('click', everything);
}

function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    drawNow();
  });
}

// Drawing time is left in the page's performance entries, where the benchmark and the developer's tools find it.
function drawNow() {
  const start = performance.now();
  painter.draw();
  light();
  performance.clearMeasures('draw');
  performance.measure('draw', { start });
}

function light() {
  const followed = follow
    ? panels.map((panel) => ({ panel, boxes: panel.journey(follow.iteration, follow.home, follow.microBatch) }))
    : [];
  painter.light(focus, followed);
  explain();
}

function explain() {
  tip.style.display = focus || note ? 'block' : 'none';
  if (!focus) {
    if (note) {
      tip.replaceChildren();
      make('strong', note.label, tip);
      make('span', note.texts.join('\n'), tip);
      beside(note.x + 12, note.y + 14, note.y - 6);
    }
    return;
  }
  const { panel, box } = focus;
  const op = page.ops[panel.boxes.op[box]];
  const row = panel.rows[panel.rowOf[box]];
  const time = (value) => short(value);
  const length = panel.boxes.end[box] - panel.boxes.start[box];
  const place = (other) => `${panel.text(other)} on ${panel.rows[panel.rowOf[other]].label} (until ${time(panel.boxes.end[other])})`;
  const begin = (other) => `${panel.text(other)} on ${panel.rows[panel.rowOf[other]].label} (at ${time(panel.boxes.start[other])})`;
  tip.replaceChildren();
  make('strong', `${panel.text(box)} on ${row.label}`, tip);
  const lines = [
    `${op.meaning}, ${time(panel.boxes.start[box])} to ${time(panel.boxes.end[box])} (${time(length)} ${panel.timeUnit}${length === 1 || panel.timeUnit.length <= 2 ? '' : 's'})`,
  ];
  if (panel.iterations > 1) lines.push(`iteration ${panel.boxes.iteration[box]}`);
  if (panel.rerouted(box)) lines.push(`re-routed from pipeline ${panel.boxes.home[box]}`);
  const needs = panel.needs(box);
  const before = box > row.boxes.from ? box - 1 : -1;
  if (needs.length) lines.push(`waits for ${needs.map(place).join(', ')}`);
  if (before >= 0 && !needs.includes(before)) lines.push(`follows ${place(before)}`);
  const awaited = panel.awaited(box);
  if (awaited.length) lines.push(`awaited by ${awaited.map(begin).join(', ')}`);
  if (panel.change?.[box]) {
    const words = { new: 'only in this one', moved: 'on another server above', reordered: 'in another order above' };
    lines.push(words[page.changes[panel.change[box]]]);
  }
  make('span', lines.join('\n'), tip);
  if (panel.wrong[box]) make('span', `\nWRONG: ${panel.wrong[box]}`, tip).className = 'wrong';
  const { x, y, width, height } = painter.rectangle(panel, box);
  beside(x + width + 10, y + height + 8, y - 8);
}

// Put the tip at a place across, below one height or, where there is no room, above another.
function beside(across, below, above) {
  tip.style.left = `${Math.max(4, Math.min(across, painter.width - tip.offsetWidth - 8))}px`;
  tip.style.top = `${below + tip.offsetHeight < painter.height ? below : Math.max(4, above - tip.offsetHeight)}px`;
}

// Say what befell a server where it has no box.
function befell(hit, x, y) {
  const texts = hit && hit.box < 0 && x >= painter.left && x <= painter.edge
    ? hit.panel.note(hit.row, painter.time(x) / hit.panel.scale, (3 * painter.perPixel) / hit.panel.scale)
    : [];
  const before = note;
  note = texts.length ? { label: hit.row.label, texts, x, y } : null;
  if (before || note) explain();
}

function keepInside() {
  const ends = panels.map((panel) => panel.end * panel.scale);
  const end = Math.max(...ends, 1e-9);
  const span = (painter.edge - painter.left) * painter.perPixel;
  painter.from = Math.min(Math.max(painter.from, -span * 0.1), Math.max(0, end - span * 0.5));
  painter.top = Math.max(0, Math.min(painter.top, painter.length - (painter.height - AXIS) + 10));
}

function everything() {
  painter.fit();
  keepInside();
  redraw();
}

// Zoom time, and with it the rows where they are too low to be read.
function zoom(factor, x = (painter.left + painter.edge) / 2, y = painter.height / 2) {
  const time = painter.time(x);
  const end = Math.max(...panels.map((panel) => panel.end * panel.scale), 1e-9);
  const widest = (end * 1.2) / Math.max(50, painter.edge - painter.left);
  painter.perPixel = Math.min(widest, Math.max(widest / 1e5, painter.perPixel * factor));
  painter.from = time - (x - painter.left) * painter.perPixel;
  const readable = Math.max(painter.fitted, 22);
  if (painter.rowHeight <= readable) {
    heighten(Math.min(readable, Math.max(painter.fitted, painter.rowHeight / factor)), y);
  }
  keepInside();
  redraw();
}

// Give the rows another height, and keep what is at a place of the screen there.
function heighten(rowHeight, y) {
  const place = painter.top + y - AXIS;
  const line = Math.max(0, painter.lines.findLastIndex((each) => each.top <= place));
  const inside = painter.lines.length ? (place - painter.lines[line].top) / painter.rowHeight : 0;
  painter.rowHeight = rowHeight;
  painter.layout();
  painter.top = (painter.lines[line]?.top ?? 0) + inside * rowHeight - (y - AXIS);
}

function stretch(factor, y = painter.height / 2) {
  heighten(Math.min(60, Math.max(1, painter.rowHeight * factor)), y);
  keepInside();
  redraw();
}

function pan(x, y) {
  painter.from += x * painter.perPixel;
  painter.top += y;
  keepInside();
  redraw();
}

function point(panel, box) {
  const next = box >= 0 ? { panel, box } : null;
  if (next?.panel === focus?.panel && next?.box === focus?.box) return;
  focus = next;
  light();
}

function followed(target) {
  if (!target || target.panel.boxes.home[target.box] < 0) follow = null;
  else {
    const { iteration, home, microBatch } = target.panel.boxes;
    const box = target.box;
    const same = follow && follow.home === home[box] && follow.microBatch === microBatch[box];
    follow = same ? null : { iteration: iteration[box], home: home[box], microBatch: microBatch[box] };
  }
  light();
}

// By keys from box to box: along a row, or to the box of the nearest time on the next row that has one.
function step(across, down) {
  if (!focus) {
    for (const { panel, place } of painter.seen()) {
      const [from, to] = painter.range(panel, panel.rows[place]);
      for (let box = from; box < to; box++) if (painter.visible(panel, box)) return goTo(panel, box);
    }
    return undefined;
  }
  const { panel, box } = focus;
  const row = panel.rows[panel.rowOf[box]];
  if (across) {
    let next = box + across;
    while (next >= row.boxes.from && next < row.boxes.to && !painter.visible(panel, next)) next += across;
    return next >= row.boxes.from && next < row.boxes.to ? goTo(panel, next) : undefined;
  }
  let line = painter.lines.findIndex((each) => each.panel === panel && each.place === panel.rowOf[box]);
  for (line += down; line >= 0 && line < painter.lines.length; line += down) {
    const other = painter.lines[line];
    const { boxes, scale, rows } = other.panel;
    const { from, to } = rows[other.place].boxes;
    if (from === to) continue;
    const near = Math.min(to - 1, firstAbove(boxes.end, panel.begins(box) / scale, from, to));
    return goTo(other.panel, near);
  }
  return undefined;
}

// Bring a box into sight and point at it.
function goTo(panel, box) {
  const { x, y, width, height } = painter.rectangle(panel, box);
  if (x < painter.left) painter.from -= (painter.left - x + 60) * painter.perPixel;
  if (x + width > painter.edge) painter.from += (x + width - painter.edge + 60) * painter.perPixel;
  if (y < AXIS) painter.top -= AXIS - y + 30;
  if (y + height > painter.height) painter.top += y + height - painter.height + 30;
  focus = { panel, box };
  drawNow();
}

const KEYS = {
  ArrowLeft: (event) => (event.shiftKey ? pan(-80, 0) : step(-1, 0)),
  ArrowRight: (event) => (event.shiftKey ? pan(80, 0) : step(1, 0)),
  ArrowUp: (event) => (event.shiftKey ? pan(0, -80) : step(0, -1)),
  ArrowDown: (event) => (event.shiftKey ? pan(0, 80) : step(0, 1)),
  PageUp: () => pan(0, 40 - painter.height),
  PageDown: () => pan(0, painter.height - 40),
  '+': () => zoom(0.8),
  '=': () => zoom(0.8),
  '-': () => zoom(1.25),
  ']': () => stretch(1.25),
  '[': () => stretch(0.8),
  0: everything,
  Home: everything,
  Enter: () => followed(focus),
  ' ': () => followed(focus),
  Escape: () => {
    focus = follow = null;
    light();
  },
};

function listen() {
  let drag = null;
  const where = (event) => {
    const bounds = plot.getBoundingClientRect();
    return [event.clientX - bounds.left, event.clientY - bounds.top];
  };
  plot.addEventListener('keydown', (event) => {
    const action = event.ctrlKey || event.metaKey || event.altKey ? null : KEYS[event.key];
    if (!action) return;
    event.preventDefault();
    action(event);
  });
  plot.addEventListener('wheel', (event) => {
    event.preventDefault();
    const [x, y] = where(event);
    const turn = event.deltaY || event.deltaX;
    if (event.shiftKey) stretch(turn > 0 ? 0.8 : 1.25, y);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX, 0);
    else zoom(1.0015 ** Math.max(-300, Math.min(300, event.deltaY)), x, y);
  }, { passive: false });
  plot.addEventListener('pointerdown', (event) => {
    drag = { x: event.clientX, y: event.clientY, far: false };
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener('pointermove', (event) => {
    if (drag) {
      const [x, y] = [drag.x - event.clientX, drag.y - event.clientY];
      if (!drag.far && Math.hypot(x, y) < 4) return;
      drag = { x: event.clientX, y: event.clientY, far: true };
      plot.classList.add('panning');
      pan(x, y);
      return;
    }
    const [x, y] = where(event);
    const hit = painter.at(x, y);
    point(hit?.panel, hit ? hit.box : -1);
    befell(hit, x, y);
  });
  plot.addEventListener('pointerup', (event) => {
    const far = drag?.far;
    drag = null;
    plot.classList.remove('panning');
    if (far) return;
    const hit = painter.at(...where(event));
    followed(hit && hit.box >= 0 ? hit : null);
  });
  plot.addEventListener('pointerleave', () => {
    point(null, -1);
    befell(null);
  });
  window.addEventListener('resize', () => {
    painter.resize();
    keepInside();
    redraw();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    painter.colours();
    redraw();
  });
}

head();
switches();
listen();
painter.resize();
painter.fit();
drawNow();
performance.mark('first draw');

// For the console and for tests: a zoom step, and the places on the page of an instruction such as 1F0.2 and of a
// server's time.
window.schedule = {
  zoom,
  place(text, panel = 0, iteration = 0) {
    const box = panels[panel].find(text, iteration);
    if (box < 0) return null;
    const bounds = plot.getBoundingClientRect();
    const found = painter.rectangle(panels[panel], box);
    return { ...found, x: found.x + bounds.left, y: found.y + bounds.top };
  },
  moment(label, time, panel = 0) {
    const row = panels[panel].rows.findIndex((each) => each.label === label);
    if (row < 0) return null;
    const bounds = plot.getBoundingClientRect();
    const top = painter.y(panels[panel].rowTop[row]);
    return { x: painter.x(time * panels[panel].scale) + bounds.left, y: top + painter.rowHeight / 2 + bounds.top };
  },
};
