// What is drawn beside the boxes: dead rows, memory, transfers, ends of iterations, and views.

import { drawCross } from './boxes.js';
import { criticalPath } from './critical.js';
import { firstAbove } from './model.js';
import { AXIS } from './scene.js';

// Where a server is dead: a line through its row, with a cross where it died on the way and a flag where it came back.
export function drawOutages(scene, pen, { panel, place, top }) {
  const row = panel.rows[place];
  const y = scene.y(top);
  const height = Math.max(2, scene.rowHeight - (scene.rowHeight > 6 ? 3 : 0));
  const middle = y + Math.max(1, scene.rowHeight - 3) / 2;
  for (const [start, end, text] of row.outages) {
    const from = start === null ? scene.left : scene.x(start * panel.scale);
    const to = end === null ? scene.edge : scene.x(end * panel.scale);
    if (to < scene.left || from > scene.edge) continue;
    if (start !== null) {
      pen.fillStyle = scene.theme.ground;
      pen.fillRect(from, y, to - from, height);
    }
    pen.fillStyle = scene.theme.dead;
    pen.fillRect(from, middle - 0.75, to - from, 1.5);
    if (scene.rowHeight >= 15) drawPill(scene, pen, Math.max(scene.left, from) + 12, Math.min(scene.edge, to), middle, text);
    if (start !== null) drawCross(scene, pen, from - height / 3, middle - height / 3, height / 1.5, height / 1.5, scene.theme.dead);
    if (end !== null) drawFlag(scene, pen, to, y, height);
  }
}

// A text on a line, if there is room for some of it.
function drawPill(scene, pen, from, to, middle, text) {
  pen.font = 'bold 11px "DejaVu Sans", Verdana, sans-serif';
  pen.textAlign = 'left';
  pen.textBaseline = 'middle';
  const full = pen.measureText(text).width + 20;
  const width = Math.min(full, to - from - 8);
  if (width < Math.min(full, 90)) return;
  pen.fillStyle = scene.theme.ground;
  pen.strokeStyle = scene.theme.dead;
  pen.lineWidth = 1.5;
  pen.beginPath();
  const height = Math.max(15, scene.rowHeight - 5); // a text stands clear of it
  pen.roundRect(from, middle - height / 2, width, height, 9);
  pen.fill();
  pen.stroke();
  pen.fillStyle = scene.theme.dead;
  let said = text;
  while (said.length > 2 && pen.measureText(said).width > width - 20) said = `${said.slice(0, -2)}\u2026`;
  pen.fillText(said, from + 10, middle + 0.5);
}

function drawFlag(scene, pen, x, y, height) {
  pen.fillStyle = scene.theme.back;
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x + Math.max(3, height / 2), y + height / 2);
  pen.lineTo(x, y + height);
  pen.fill();
}

// Where a server changes views: a band from when it knew to its first instruction.
export function drawRecoveries(scene, pen, { panel, place, top }) {
  pen.fillStyle = scene.theme.pause;
  for (const [start, end] of panel.rows[place].pauses) {
    const x = scene.x(start * panel.scale);
    pen.fillRect(x, scene.y(top), Math.max(1, scene.x(end * panel.scale) - x), Math.max(1, scene.rowHeight - (scene.rowHeight > 6 ? 3 : 0)));
  }
}

// Where views begin: a line over all rows of a panel.
export function drawViews(scene, pen) {
  pen.fillStyle = scene.theme.ink;
  for (const panel of scene.panels) {
    for (const [time] of panel.views) {
      pen.fillRect(scene.x(time * panel.scale) - 0.75, scene.y(panel.curveTop), 1.5, panel.bottom - panel.curveTop);
    }
  }
}

// The names of views stand at their lines, as many as there is room for.
export function drawViewNames(scene, pen) {
  pen.font = 'bold 11px "DejaVu Sans", Verdana, sans-serif';
  pen.textAlign = 'left';
  pen.textBaseline = 'middle';
  for (const panel of scene.panels) {
    let free = scene.left;
    const y = Math.max(AXIS, scene.y(panel.rowsTop)) + 8;
    if (y > scene.y(panel.bottom)) continue;
    for (const [time, name] of panel.views) {
      const x = scene.x(time * panel.scale) + 3;
      const width = pen.measureText(name).width;
      if (x < free || x + width > scene.edge) continue;
      pen.fillStyle = scene.theme.ground;
      pen.fillRect(x - 1, y - 7, width + 4, 14);
      pen.fillStyle = scene.theme.ink;
      pen.fillText(name, x + 1, y);
      free = x + width + 4;
    }
  }
}

// Transfers that take time, each as a line below its row.
export function drawTransfers(scene, pen, { panel, place, top }) {
  const row = panel.rows[place];
  const { start, end } = panel.transfers;
  const first = firstAbove(end, scene.from / panel.scale, row.transfers.from, row.transfers.to);
  for (let each = first; each < row.transfers.to && start[each] * panel.scale < scene.time(scene.edge); each++) {
    const x = scene.x(start[each] * panel.scale);
    pen.fillStyle = scene.theme.dim;
    pen.fillRect(x, scene.y(top) + scene.rowHeight - 3, Math.max(1, scene.x(end[each] * panel.scale) - x), 2);
  }
}

// Lines from the end of what makes a result to the start of what needs it, on another server.
export function drawNeeds(scene, pen, panel, [from, to]) {
  pen.strokeStyle = scene.theme.dim;
  pen.lineWidth = 0.8;
  for (let box = from; box < to; box++) {
    for (const need of panel.needs(box)) {
      if (panel.rowOf[need] !== panel.rowOf[box] && scene.visible(panel, box)) drawLink(scene, pen, panel, need, box);
    }
  }
}

export function drawLink(scene, pen, panel, one, other) {
  const start = scene.rectangle(panel, one);
  const stop = scene.rectangle(panel, other);
  pen.beginPath();
  pen.moveTo(start.x + start.width - 1, start.y + start.height / 2);
  pen.lineTo(stop.x + 1, stop.y + stop.height / 2);
  pen.stroke();
}

// Where iterations end: a line behind a barrier, and a step per stage where the optimizer is staggered.
export function drawBoundaries(scene, pen) {
  pen.strokeStyle = scene.theme.boundary;
  pen.lineWidth = 1.5;
  pen.setLineDash([5, 3]);
  for (const { panel, group, top, bottom } of scene.groups) {
    const byStage = scene.grouping === 'stage';
    if (!byStage && !panel.barrier) continue;
    const before = scene.groups.find((each) => each.panel === panel && each.group === group - 1);
    (panel.ends[byStage ? group : 0] ?? []).forEach((end, iteration) => {
      const x = scene.x(end * panel.scale);
      const last = byStage && before ? panel.ends[group - 1]?.[iteration] : undefined;
      pen.beginPath();
      if (last !== undefined) pen.moveTo(scene.x(last * panel.scale), scene.y(before.bottom));
      pen.lineTo(x, scene.y(before ? before.bottom : top));
      pen.lineTo(x, scene.y(bottom));
      pen.stroke();
    });
  }
  pen.setLineDash([]);
}

// The critical path: its boxes framed, and a line from each to the next one.
export function drawCritical(scene, pen) {
  pen.strokeStyle = scene.theme.critical;
  for (const panel of scene.panels) {
    const path = criticalPath(panel);
    pen.lineWidth = 2;
    pen.beginPath();
    const framed = scene.rowHeight >= 9;
    path.forEach((box, place) => {
      const { x, y, width, height } = scene.rectangle(panel, box);
      const middle = y + height / 2;
      if (place > 0) pen.lineTo(x + 1, middle);
      // Where the boxes are framed, the line only goes from one to the next.
      if (place === 0 || framed) pen.moveTo(x + width - 1, middle);
      else pen.lineTo(x + width - 1, middle);
    });
    pen.stroke();
    if (!framed) continue;
    pen.lineWidth = 2.5;
    for (const box of path) {
      const { x, y, width, height } = scene.rectangle(panel, box);
      if (width > 4 && x < scene.edge && x + width > scene.left) pen.strokeRect(x + 0.5, y + 0.5, Math.max(1, width - 1), height - 1);
    }
  }
}

// How long each stage takes for each iteration, above its rows, where there is room between the groups.
export function drawWindows(scene, pen) {
  if (scene.gap(scene.rowHeight) < 14) return;
  pen.strokeStyle = pen.fillStyle = scene.theme.dim;
  pen.lineWidth = 1;
  pen.font = '11px "DejaVu Sans", Verdana, sans-serif';
  pen.textAlign = 'center';
  pen.textBaseline = 'middle';
  for (const { panel, group, top } of scene.groups) {
    const y = scene.y(top) - 8;
    if (panel.barrier || y < AXIS || y > scene.height) continue;
    for (const [start, end, caption] of panel.turns[group] ?? []) {
      const from = scene.x(start * panel.scale) + 0.5;
      const to = scene.x(end * panel.scale) - 0.5;
      const seen = [Math.max(from, scene.left), Math.min(to, scene.edge)];
      if (seen[0] > seen[1]) continue;
      const room = pen.measureText(caption).width + 8;
      const middle = (seen[0] + seen[1]) / 2;
      const named = room < seen[1] - seen[0] - 8;
      pen.beginPath();
      for (const x of [from, to]) {
        pen.moveTo(x, y - 4);
        pen.lineTo(x, y + 4);
      }
      pen.moveTo(from, y);
      pen.lineTo(named ? middle - room / 2 : to, y);
      pen.moveTo(named ? middle + room / 2 : to, y);
      pen.lineTo(to, y);
      pen.stroke();
      if (named) pen.fillText(caption, middle, y);
    }
  }
}
