// What stands around the boxes: the times along the top, the names of rows and groups, and the rows' figures.

import { drawBandNames } from './bands.js';
import { drawCurveNames, drawMemoryScale } from './lanes.js';
import { AXIS, LEGIBLE } from './scene.js';
import { timeText } from './times.js';

export function drawAxis(scene, pen, lines) {
  pen.fillStyle = scene.theme.ground;
  pen.fillRect(0, 0, scene.width, AXIS);
  pen.fillStyle = scene.theme.dim;
  pen.font = '11px "DejaVu Sans", Verdana, sans-serif';
  pen.textBaseline = 'middle';
  pen.textAlign = 'left';
  pen.fillText(timeText(1, scene.page.unit) === '1' ? scene.page.unit : 'time', 10, AXIS / 2);
  pen.textAlign = 'center';
  for (const tick of scene.ticks()) {
    const text = timeText(tick, scene.page.unit);
    const x = scene.x(tick);
    const half = pen.measureText(text).width / 2;
    if (x - half > scene.left - 6 - half && x + half < scene.edge + 6) pen.fillText(text, x, AXIS / 2);
  }
  if (scene.rowHeight >= LEGIBLE && lines.some(({ panel, place }) => !panel.rows[place].dead)) {
    pen.textAlign = 'right';
    for (const { name, right } of scene.columns) pen.fillText(name, scene.edge + right, AXIS / 2);
  }
  pen.fillStyle = scene.theme.rule;
  pen.fillRect(0, AXIS - 1, scene.width, 1);
}

export function drawMargins(scene, pen, lines) {
  pen.fillStyle = scene.theme.ground;
  pen.fillRect(0, AXIS, scene.left, scene.height);
  pen.fillRect(scene.edge, AXIS, scene.right, scene.height);
  pen.textBaseline = 'middle';
  for (const { panel, place, top } of lines) {
    const row = panel.rows[place];
    const middle = scene.y(top) + (scene.rowHeight - (scene.rowHeight > 6 ? 3 : 0)) / 2;
    if (row.dead) {
      pen.fillStyle = scene.theme.dead;
      pen.fillRect(0, scene.y(top), 6, Math.max(2, scene.rowHeight - 1));
    }
    if (scene.rowHeight < LEGIBLE) continue;
    pen.font = 'bold 11px "DejaVu Sans", Verdana, sans-serif';
    pen.fillStyle = row.dead ? scene.theme.dead : scene.theme.ink;
    pen.textAlign = 'left';
    pen.fillText(row.label, 12, middle);
    if (row.dead) pen.fillRect(12, middle, pen.measureText(row.label).width, 1.2);
    if (scene.lane) drawMemoryScale(scene, pen, { panel, place, top });
    if (row.dead) continue;
    pen.fillStyle = scene.theme.ink;
    pen.textAlign = 'right';
    pen.font = '11px "DejaVu Sans", Verdana, sans-serif';
    for (const { name, right } of scene.columns) pen.fillText(row[name], scene.edge + right, middle);
  }
  if (scene.folded) drawBandNames(scene, pen);
  else drawNames(scene, pen);
  drawCurveNames(scene, pen);
  drawTitles(scene, pen);
}

function drawNames(scene, pen) {
  pen.textAlign = 'left';
  for (const { group, top, bottom } of scene.groups) {
    if (scene.y(bottom) < AXIS || scene.y(top) > scene.height) continue;
    pen.fillStyle = scene.theme.dim;
    pen.font = '11px "DejaVu Sans", Verdana, sans-serif';
    const inside = scene.rowHeight < LEGIBLE;
    if (inside && bottom - top < 10) continue;
    pen.fillText(`${scene.grouping} ${group}`, 12, inside ? Math.max(AXIS + 8, scene.y((top + bottom) / 2)) : scene.y(top) - 8);
    if (inside) pen.fillRect(scene.left - 4, scene.y(top), 2, bottom - top);
  }
}

function drawTitles(scene, pen) {
  if (scene.panels.length < 2) return;
  pen.textAlign = 'left';
  for (const panel of scene.panels) {
    pen.fillStyle = scene.theme.ground;
    pen.fillRect(0, scene.y(panel.top), scene.width, 19);
    pen.fillStyle = scene.theme.ink;
    pen.font = 'bold 12px "DejaVu Sans", Verdana, sans-serif';
    pen.fillText(`${panel.name}: ${panel.title}`, 12, scene.y(panel.top) + 11);
  }
}
