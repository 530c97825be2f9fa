// Moves: what zooming, panning and going somewhere make of the scene.

import { AXIS } from './scene.js';

// Neither time nor rows leave the plot.
function keepInside(scene) {
  const span = Math.max(0, scene.edge - scene.left) * scene.perPixel;
  scene.from = Math.min(Math.max(scene.from, -span * 0.1), Math.max(0, scene.end - span * 0.5));
  scene.top = Math.max(0, Math.min(scene.top, scene.length - (scene.height - AXIS) + 10));
}

// Zoom time, and with it the rows where they are too low to be read.
function zoomTo(scene, factor, x = (scene.left + scene.edge) / 2, y = scene.height / 2) {
  const time = scene.time(x);
  const widest = (scene.end * 1.2) / Math.max(50, scene.edge - scene.left);
  scene.perPixel = Math.min(widest, Math.max(widest / 1e5, scene.perPixel * factor));
  scene.from = time - (x - scene.left) * scene.perPixel;
  const readable = Math.max(scene.fitted, 22);
  if (scene.rowHeight <= readable) {
    heighten(scene, Math.min(readable, Math.max(scene.fitted, scene.rowHeight / factor)), y);
  }
  keepInside(scene);
}

// Give the rows another height, and keep what is at a place of the screen there.
function heighten(scene, rowHeight, y) {
  if (rowHeight === scene.rowHeight) return;
  const place = scene.top + y - AXIS;
  const line = Math.max(0, scene.lines.findLastIndex((each) => each.top <= place));
  const inside = scene.lines.length ? (place - scene.lines[line].top) / scene.pitch : 0;
  scene.rowHeight = rowHeight;
  scene.layout();
  scene.top = (scene.lines[line]?.top ?? 0) + inside * scene.pitch - (y - AXIS);
}

function stretchRows(scene, factor, y = scene.height / 2) {
  heighten(scene, Math.min(60, Math.max(1, scene.rowHeight * factor)), y);
  keepInside(scene);
}

function move(scene, x, y) {
  scene.from += x * scene.perPixel;
  scene.top += y;
  keepInside(scene);
}

// Show a time of a panel in the middle, with about three iterations.
function goToTime(scene, panel, time) {
  const span = (scene.edge - scene.left) * scene.perPixel;
  const wide = Math.min(span, Math.max(3 * panel.period * panel.scale, scene.end / 500));
  scene.perPixel = wide / (scene.edge - scene.left);
  scene.from = time * panel.scale - wide / 2;
  keepInside(scene);
}

// Bring a box into sight, and its row out of a band.
function reveal(scene, panel, box) {
  const place = panel.rowOf[box];
  if (panel.inBand[place]) {
    scene.opened.add(scene.name(panel, panel.rows[place][scene.grouping]));
    scene.layout();
  }
  const { x, y, width, height } = scene.rectangle(panel, box);
  if (x < scene.left) scene.from -= (scene.left - x + 60) * scene.perPixel;
  if (x + width > scene.edge) scene.from += (x + width - scene.edge + 60) * scene.perPixel;
  if (y < AXIS) scene.top -= AXIS - y + 30;
  if (y + height > scene.height) scene.top += y + height - scene.height + 30;
  keepInside(scene);
}

// Bring a row or a band into sight.
function revealStop(scene, { group, top }) {
  const height = group === undefined ? scene.pitch : scene.band;
  if (scene.y(top) < AXIS) scene.top = top;
  if (scene.y(top) + height > scene.height) scene.top = top + height - scene.height + AXIS;
  keepInside(scene);
}

export const moves = { keepInside, zoom: zoomTo, stretch: stretchRows, pan: move, showTime: goToTime, reveal, revealStop };
