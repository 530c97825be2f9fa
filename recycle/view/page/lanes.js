// What is drawn as a height over time: the memory of each server below its row, and the curves of a run above all rows.

import { firstAbove } from './model.js';
import { AXIS, CURVE } from './scene.js';

// The memory that a server holds, in a lane of its own, with its limit as a dashed line.
export function drawMemory(scene, pen, { panel, place, top }) {
  const row = panel.rows[place];
  const { time, memory } = panel.samples;
  if (row.dead && row.samples.from === row.samples.to) return;
  const most = Math.max(row.limit ?? 0, panel.mostMemory);
  const height = scene.lane - 5;
  const low = scene.y(top) + scene.pitch - 4;
  const y = (level) => low - (height * level) / most;
  const from = Math.max(row.samples.from, firstAbove(time, scene.from / panel.scale, row.samples.from, row.samples.to) - 1);
  const to = firstAbove(time, scene.time(scene.edge) / panel.scale, from, row.samples.to);
  const start = Math.max(scene.left, scene.x(0));
  const end = Math.min(scene.edge, scene.x(panel.end * panel.scale));
  pen.beginPath();
  pen.moveTo(start, low);
  let level = low;
  for (let sample = from; sample < to; sample++) {
    const x = Math.max(start, scene.x(time[sample] * panel.scale));
    pen.lineTo(x, level);
    level = y(memory[sample]);
    pen.lineTo(x, level);
  }
  pen.lineTo(end, level);
  pen.lineTo(end, low);
  pen.fillStyle = scene.theme.memory;
  pen.fill();
  pen.fillStyle = scene.theme.rule;
  pen.fillRect(start, low, end - start, 1);
  if (row.limit === null) return;
  pen.strokeStyle = scene.theme.dead;
  pen.lineWidth = 1;
  pen.setLineDash([4, 3]);
  pen.beginPath();
  pen.moveTo(start, y(row.limit));
  pen.lineTo(end, y(row.limit));
  pen.stroke();
  pen.setLineDash([]);
}

// The scale of a lane of memory, in the margin.
export function drawMemoryScale(scene, pen, { panel, place, top }) {
  const row = panel.rows[place];
  if (row.dead && row.samples.from === row.samples.to) return;
  pen.font = '11px "DejaVu Sans", Verdana, sans-serif';
  pen.textAlign = 'right';
  pen.fillStyle = scene.theme.dim;
  const low = scene.y(top) + scene.pitch - 4;
  const high = low - (scene.lane - 5);
  const most = Math.max(row.limit ?? 0, panel.mostMemory);
  const said = row.limit === null ? '' : row.limit === most ? 'limit ' : '';
  pen.fillText(`${said}${panel.memoryText(most)}`, scene.left - 4, high + 3);
  if (scene.lane >= 20) pen.fillText('0', scene.left - 4, low - 2);
}

// Loss, throughput and the like over the time of a run.
export function drawCurves(scene, pen) {
  for (const panel of scene.panels) {
    panel.curves.forEach(({ values, times }, number) => {
      const { low, high, y } = frame(scene, panel, number);
      pen.fillStyle = scene.theme.idle;
      pen.fillRect(scene.left, high, scene.edge - scene.left, low - high);
      pen.beginPath();
      times.forEach((time, place) => pen.lineTo(scene.x(time * panel.scale), y(values[place])));
      pen.strokeStyle = scene.theme.curves[number % scene.theme.curves.length];
      pen.lineWidth = 1.8;
      pen.stroke();
      if (times.length > 60) return;
      pen.fillStyle = pen.strokeStyle;
      times.forEach((time, place) => pen.fillRect(scene.x(time * panel.scale) - 1.5, y(values[place]) - 1.5, 3, 3));
    });
  }
}

export function drawCurveNames(scene, pen) {
  pen.textBaseline = 'middle';
  for (const panel of scene.panels) {
    panel.curves.forEach(({ name, unit, values }, number) => {
      const { low, high, least, most } = frame(scene, panel, number);
      if (low < AXIS || high > scene.height) return;
      pen.fillStyle = scene.theme.ink;
      pen.font = 'bold 11px "DejaVu Sans", Verdana, sans-serif';
      pen.textAlign = 'left';
      pen.fillText(name, 12, high - 7);
      const behind = pen.measureText(`${name} `).width;
      pen.font = '11px "DejaVu Sans", Verdana, sans-serif';
      pen.fillStyle = scene.theme.dim;
      if (unit) pen.fillText(unit, 12 + behind, high - 7);
      if (!values.length) return;
      pen.textAlign = 'right';
      pen.fillText(String(Number(most.toPrecision(3))), scene.left - 4, high + 5);
      pen.fillText(String(Number(least.toPrecision(3))), scene.left - 4, low - 5);
    });
  }
}

// The value of a curve that is pointed at; none if no curve is there.
export function curveAt(scene, x, y) {
  if (x < scene.left || x > scene.edge) return null;
  for (const panel of scene.panels) {
    for (const [number, { name, unit, times, values, steps }] of panel.curves.entries()) {
      const { low, high } = frame(scene, panel, number);
      if (y < high || y > low || !times.length) continue;
      const time = scene.time(x) / panel.scale;
      const place = Math.min(times.length - 1, firstAbove(times, time, 0, times.length));
      return { label: `iteration ${steps[place] + 1}`, texts: [`${name} ${Number(values[place].toPrecision(5))} ${unit}`.trim()] };
    }
  }
  return null;
}

function frame(scene, panel, number) {
  const low = scene.y(panel.curveTop + (number + 1) * CURVE) - 5;
  const high = scene.y(panel.curveTop + number * CURVE) + 18;
  const { values, zero } = panel.curves[number];
  const most = Math.max(...values, 1e-12);
  const least = zero ? 0 : Math.min(...values, most);
  const y = (value) => low - 2 - ((low - high - 4) * (value - least)) / (most - least || 1);
  return { low, high, least, most, y };
}
