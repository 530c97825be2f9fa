// Drawing: the schedules on one canvas, and what is lit on another one above it.

import { drawBox, drawPixels, drawRow } from './boxes.js';
import { drawBand } from './bands.js';
import { drawCurves, drawMemory } from './lanes.js';
import { drawAxis, drawMargins } from './margins.js';
import {
  drawBoundaries, drawCritical, drawLink, drawNeeds, drawOutages, drawRecoveries, drawTransfers, drawViewNames, drawViews,
  drawWindows,
} from './marks.js';
import { AXIS } from './scene.js';

const CROWD = 6000; // more boxes than this are painted as pixels
const SMALL = 8; // rows lower than this are, too

export function draw(scene, pen) {
  pen.setTransform(scene.ratio, 0, 0, scene.ratio, 0, 0);
  pen.fillStyle = scene.theme.ground;
  pen.fillRect(0, 0, scene.width, scene.height);
  const lines = [...scene.seen()];
  const ranges = lines.map(({ panel, place }) => scene.range(panel, panel.rows[place]));
  const count = ranges.reduce((sum, [from, to]) => sum + to - from, 0);
  const crowded = count > CROWD || scene.rowHeight < SMALL;
  pen.save();
  clip(scene, pen);
  if (crowded) {
    drawPixels(scene, pen, lines, ranges);
  } else {
    drawGrid(scene, pen);
    lines.forEach((line, place) => drawRow(scene, pen, line, ranges[place]));
  }
  scene.bands.forEach((band) => drawBand(scene, pen, band));
  drawCurves(scene, pen);
  drawBoundaries(scene, pen);
  lines.forEach((line) => drawOutages(scene, pen, line));
  lines.forEach((line) => drawRecoveries(scene, pen, line));
  if (scene.lane) lines.forEach((line) => drawMemory(scene, pen, line));
  if (scene.show.transfers) {
    lines.forEach((line) => drawTransfers(scene, pen, line));
    if (!crowded) lines.forEach(({ panel }, place) => drawNeeds(scene, pen, panel, ranges[place]));
  }
  if (scene.show.critical) drawCritical(scene, pen);
  if (scene.grouping === 'stage') drawWindows(scene, pen);
  drawViews(scene, pen);
  drawViewNames(scene, pen);
  pen.restore();
  drawMargins(scene, pen, lines);
  drawAxis(scene, pen, lines);
  if (!scene.stops.length) sayEmpty(scene, pen);
}

function sayEmpty(scene, pen) {
  pen.fillStyle = scene.theme.ground;
  pen.fillRect(0, AXIS, scene.width, scene.height);
  pen.fillStyle = scene.theme.dim;
  pen.font = '13px "DejaVu Sans", Verdana, sans-serif';
  [pen.textAlign, pen.textBaseline] = ['center', 'middle'];
  pen.fillText('no iteration is recorded yet', scene.width / 2, AXIS + (scene.height - AXIS) / 3);
}

// What is lit, over all the rest: the pointed box with what it waits for and who waits for it, a followed micro-batch, and
// of a pointed idle time what ends it.
export function light(scene, pen, focus, followed, note = null) {
  pen.setTransform(scene.ratio, 0, 0, scene.ratio, 0, 0);
  pen.clearRect(0, 0, scene.width, scene.height);
  pen.save();
  clip(scene, pen);
  if (followed.length) {
    pen.globalAlpha = 0.72;
    pen.fillStyle = scene.theme.ground;
    for (const { rowsTop, bottom } of scene.panels) pen.fillRect(scene.left, scene.y(rowsTop), scene.width, bottom - rowsTop);
    pen.globalAlpha = 1;
  }
  for (const { panel, boxes } of followed) {
    pen.strokeStyle = scene.theme.lit;
    for (const box of boxes) {
      pen.lineWidth = 1.2;
      for (const need of panel.needs(box)) drawLink(scene, pen, panel, need, box);
    }
    for (const box of boxes) drawBox(scene, pen, panel, box);
  }
  if (focus) {
    const { panel, box } = focus;
    pen.strokeStyle = scene.theme.lit;
    for (const need of panel.needs(box)) lightLink(scene, pen, panel, need, box, need, [4, 3]);
    for (const other of panel.awaited(box)) lightLink(scene, pen, panel, box, other, other, []);
    drawFrame(scene, pen, panel, box, 3);
  }
  if (note?.stop) {
    pen.lineWidth = 2;
    pen.strokeStyle = scene.theme.lit;
    const height = note.stop.group === undefined ? scene.rowHeight : scene.band;
    pen.strokeRect(scene.left + 1, scene.y(note.stop.top) - 1, scene.edge - scene.left - 2, height);
  }
  if (!focus && note?.holder >= 0) {
    pen.strokeStyle = scene.theme.lit;
    lightLink(scene, pen, note.panel, note.holder, note.next, note.holder, [4, 3]);
    drawFrame(scene, pen, note.panel, note.next, 2);
  }
  pen.restore();
}

function lightLink(scene, pen, panel, one, other, framed, dash) {
  pen.lineWidth = 1.4;
  pen.setLineDash(dash);
  drawLink(scene, pen, panel, one, other);
  drawFrame(scene, pen, panel, framed, 2);
  pen.setLineDash([]);
}

function drawFrame(scene, pen, panel, box, width) {
  const { x, y, width: wide, height } = scene.rectangle(panel, box);
  pen.lineWidth = width;
  pen.strokeStyle = scene.theme.lit;
  pen.strokeRect(x - 1, y - 1, wide + 1, height + 2);
}

function clip(scene, pen) {
  pen.beginPath();
  pen.rect(scene.left, AXIS, scene.edge - scene.left, scene.height - AXIS);
  pen.clip();
}

function drawGrid(scene, pen) {
  pen.fillStyle = scene.theme.rule;
  for (const tick of scene.ticks()) pen.fillRect(Math.round(scene.x(tick)), AXIS, 1, scene.height);
}
