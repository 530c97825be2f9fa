// The page as a whole: what keys and pointer do.

import { fillHead, makeSwitches } from './head.js';
import { Panel, firstAbove } from './model.js';
import { draw, light } from './paint.js';
import { AXIS, Scene } from './scene.js';
import { readTheme } from './theme.js';
import { explain } from './tip.js';

const page = JSON.parse(document.getElementById('data').textContent);
const panels = page.panels.map((packed) => new Panel(packed, page.ops, page.changes));
const scene = new Scene(panels, page);
const plot = document.getElementById('plot');
const base = document.getElementById('base').getContext('2d', { alpha: false });
const over = document.getElementById('over').getContext('2d');
let focus = null; // the box that is pointed at, or reached by keys
let note = null; // what is said where no box is: texts, and where
let follow = null; // the micro-batch that is followed
let waiting = false;

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
  draw(scene, base);
  lightUp();
  performance.clearMeasures('draw');
  performance.measure('draw', { start });
}

function lightUp() {
  const boxes = follow
    ? panels.map((panel) => ({ panel, boxes: panel.journey(follow.iteration, follow.home, follow.microBatch) }))
    : [];
  light(scene, over, focus, boxes);
  explain(scene, focus, note);
}

// Say what happened to a server at a time at which it has no box.
function annotate(hit, x, y) {
  const texts = hit && hit.box < 0 && x >= scene.left && x <= scene.edge
    ? hit.panel.note(hit.row, scene.time(x) / hit.panel.scale, (3 * scene.perPixel) / hit.panel.scale)
    : [];
  const before = note;
  note = texts.length ? { label: hit.row.label, texts, x, y } : null;
  if (before || note) explain(scene, focus, note);
}

function resize() {
  const ratio = window.devicePixelRatio || 1;
  for (const { canvas } of [base, over]) {
    canvas.width = Math.round(plot.clientWidth * ratio);
    canvas.height = Math.round(plot.clientHeight * ratio);
  }
  scene.resize(plot.clientWidth, plot.clientHeight, ratio);
}

function regroup() {
  scene.layout();
  keepInside();
  redraw();
}

function keepInside() {
  const ends = panels.map((panel) => panel.end * panel.scale);
  const end = Math.max(...ends, 1e-9);
  const span = (scene.edge - scene.left) * scene.perPixel;
  scene.from = Math.min(Math.max(scene.from, -span * 0.1), Math.max(0, end - span * 0.5));
  scene.top = Math.max(0, Math.min(scene.top, scene.length - (scene.height - AXIS) + 10));
}

function everything() {
  scene.fit();
  keepInside();
  redraw();
}

// Zoom time, and with it the rows where they are too low to be read.
function zoom(factor, x = (scene.left + scene.edge) / 2, y = scene.height / 2) {
  const time = scene.time(x);
  const end = Math.max(...panels.map((panel) => panel.end * panel.scale), 1e-9);
  const widest = (end * 1.2) / Math.max(50, scene.edge - scene.left);
  scene.perPixel = Math.min(widest, Math.max(widest / 1e5, scene.perPixel * factor));
  scene.from = time - (x - scene.left) * scene.perPixel;
  const readable = Math.max(scene.fitted, 22);
  if (scene.rowHeight <= readable) {
    heighten(Math.min(readable, Math.max(scene.fitted, scene.rowHeight / factor)), y);
  }
  keepInside();
  redraw();
}

// Give the rows another height, and keep what is at a place of the screen there.
function heighten(rowHeight, y) {
  const place = scene.top + y - AXIS;
  const line = Math.max(0, scene.lines.findLastIndex((each) => each.top <= place));
  const inside = scene.lines.length ? (place - scene.lines[line].top) / scene.rowHeight : 0;
  scene.rowHeight = rowHeight;
  scene.layout();
  scene.top = (scene.lines[line]?.top ?? 0) + inside * rowHeight - (y - AXIS);
}

function stretch(factor, y = scene.height / 2) {
  heighten(Math.min(60, Math.max(1, scene.rowHeight * factor)), y);
  keepInside();
  redraw();
}

function pan(x, y) {
  scene.from += x * scene.perPixel;
  scene.top += y;
  keepInside();
  redraw();
}

function point(panel, box) {
  const next = box >= 0 ? { panel, box } : null;
  if (next?.panel === focus?.panel && next?.box === focus?.box) return;
  focus = next;
  lightUp();
}

function followed(target) {
  if (!target || target.panel.boxes.home[target.box] < 0) follow = null;
  else {
    const { iteration, home, microBatch } = target.panel.boxes;
    const box = target.box;
    const same = follow && follow.home === home[box] && follow.microBatch === microBatch[box];
    follow = same ? null : { iteration: iteration[box], home: home[box], microBatch: microBatch[box] };
  }
  lightUp();
}

// By keys from box to box: along a row, or to the box of the nearest time on the next row that has one.
function step(across, down) {
  if (!focus) {
    for (const { panel, place } of scene.seen()) {
      const [from, to] = scene.range(panel, panel.rows[place]);
      for (let box = from; box < to; box++) if (scene.visible(panel, box)) return goTo(panel, box);
    }
    return undefined;
  }
  const { panel, box } = focus;
  const row = panel.rows[panel.rowOf[box]];
  if (across) {
    let next = box + across;
    while (next >= row.boxes.from && next < row.boxes.to && !scene.visible(panel, next)) next += across;
    return next >= row.boxes.from && next < row.boxes.to ? goTo(panel, next) : undefined;
  }
  let line = scene.lines.findIndex((each) => each.panel === panel && each.place === panel.rowOf[box]);
  for (line += down; line >= 0 && line < scene.lines.length; line += down) {
    const other = scene.lines[line];
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
  const { x, y, width, height } = scene.rectangle(panel, box);
  if (x < scene.left) scene.from -= (scene.left - x + 60) * scene.perPixel;
  if (x + width > scene.edge) scene.from += (x + width - scene.edge + 60) * scene.perPixel;
  if (y < AXIS) scene.top -= AXIS - y + 30;
  if (y + height > scene.height) scene.top += y + height - scene.height + 30;
  focus = { panel, box };
  drawNow();
}

const KEYS = {
  ArrowLeft: (event) => (event.shiftKey ? pan(-80, 0) : step(-1, 0)),
  ArrowRight: (event) => (event.shiftKey ? pan(80, 0) : step(1, 0)),
  ArrowUp: (event) => (event.shiftKey ? pan(0, -80) : step(0, -1)),
  ArrowDown: (event) => (event.shiftKey ? pan(0, 80) : step(0, 1)),
  PageUp: () => pan(0, 40 - scene.height),
  PageDown: () => pan(0, scene.height - 40),
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
    lightUp();
  },
};

function listen() {
  let drag = null;
  document.getElementById('fit').addEventListener('click', everything);
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
    const hit = scene.at(x, y);
    point(hit?.panel, hit ? hit.box : -1);
    annotate(hit, x, y);
  });
  plot.addEventListener('pointerup', (event) => {
    const far = drag?.far;
    drag = null;
    plot.classList.remove('panning');
    if (far) return;
    const hit = scene.at(...where(event));
    followed(hit && hit.box >= 0 ? hit : null);
  });
  plot.addEventListener('pointerleave', () => {
    point(null, -1);
    annotate(null);
  });
  window.addEventListener('resize', () => {
    resize();
    keepInside();
    redraw();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    scene.theme = readTheme(page, base);
    redraw();
  });
}

fillHead(panels);
makeSwitches(scene, redraw, regroup);
listen();
scene.theme = readTheme(page, base);
resize();
scene.fit();
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
    const found = scene.rectangle(panels[panel], box);
    return { ...found, x: found.x + bounds.left, y: found.y + bounds.top };
  },
  moment(label, time, panel = 0) {
    const row = panels[panel].rows.findIndex((each) => each.label === label);
    if (row < 0) return null;
    const bounds = plot.getBoundingClientRect();
    const top = scene.y(panels[panel].rowTop[row]);
    return { x: scene.x(time * panels[panel].scale) + bounds.left, y: top + scene.rowHeight / 2 + bounds.top };
  },
};
