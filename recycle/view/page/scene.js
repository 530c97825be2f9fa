// What is shown of the schedules, in which colours, and where: rows and times as places on the canvas, and back.

import { firstAbove } from './model.js';

export const AXIS = 24; // pixels for the times along the top

export class Scene {
  constructor(panels, page) {
    this.panels = panels;
    this.page = page;
    this.theme = null; // as readTheme gives it
    this.grouping = page.grouping;
    this.hidden = new Set(); // the numbers of ops that are not shown
    this.show = { transfers: false, memory: false };
    this.rowHeight = 24;
    this.from = 0; // time at the left edge of the plot
    this.perPixel = 1; // time per pixel
    this.top = 0; // pixels scrolled down
  }

  // Order the rows and give each its place, in pixels from the top of everything.
  layout() {
    const gap = this.gap(this.rowHeight);
    const key = (row) => row[this.grouping];
    const labels = this.panels.flatMap((panel) => panel.rows.map((row) => row.label.length));
    this.left = 22 + 7.2 * Math.max(9, ...labels.length < 20000 ? labels : [9]);
    this.right = this.width > 640 ? 150 : 0;
    this.lines = [];
    this.groups = [];
    let y = 0;
    for (const panel of this.panels) {
      panel.top = y;
      y += this.panels.length > 1 ? 20 : 0;
      panel.first = y;
      const order = panel.rows.map((row, place) => place);
      order.sort((one, other) => key(panel.rows[one]) - key(panel.rows[other]) || one - other);
      let last = null;
      panel.rowTop = new Float64Array(panel.rows.length);
      for (const place of order) {
        const group = key(panel.rows[place]);
        if (group !== last) {
          y += gap;
          this.groups.push({ panel, group, top: y, bottom: y });
          last = group;
        }
        panel.rowTop[place] = y;
        this.lines.push({ panel, place, top: y });
        y += this.rowHeight;
        this.groups.at(-1).bottom = y;
      }
      y += gap;
      panel.bottom = y;
    }
    this.length = y;
  }

  // What stands between two groups of rows.
  gap(rowHeight) {
    return Math.max(2, Math.min(22, rowHeight));
  }

  // Take another size, in pixels of the page, of which each is so many of the canvas.
  resize(width, height, ratio) {
    this.width = width;
    this.height = height;
    this.ratio = ratio;
    this.layout();
  }

  // Show everything: all of the time, and all rows if they can be told apart.
  fit() {
    const end = Math.max(...this.panels.map((panel) => panel.end * panel.scale), 1e-9);
    const rows = this.panels.reduce((sum, panel) => sum + panel.rows.length, 0);
    this.layout();
    this.from = 0;
    this.top = 0;
    this.perPixel = end / Math.max(50, this.width - this.left - this.right - 12);
    const gaps = this.groups.length + this.panels.length;
    const room = this.height - AXIS - this.panels.length * 20;
    this.rowHeight = 26;
    while (this.rowHeight > 1 && rows * this.rowHeight + gaps * this.gap(this.rowHeight) > room) this.rowHeight--;
    this.fitted = this.rowHeight;
    this.layout();
  }

  x(time) {
    return this.left + (time - this.from) / this.perPixel;
  }

  time(x) {
    return this.from + (x - this.left) * this.perPixel;
  }

  y(top) {
    return AXIS + top - this.top;
  }

  get edge() {
    return this.width - this.right;
  }

  // The lines of rows that are in sight.
  *seen() {
    let low = 0;
    let high = this.lines.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.y(this.lines[middle].top) + this.rowHeight > AXIS) high = middle;
      else low = middle + 1;
    }
    for (let place = low; place < this.lines.length && this.y(this.lines[place].top) < this.height; place++) {
      yield this.lines[place];
    }
  }

  // The boxes of a row that are in sight, as a range.
  range(panel, row) {
    const { boxes, scale } = panel;
    const from = firstAbove(boxes.end, this.from / scale, row.boxes.from, row.boxes.to);
    const to = firstAbove(boxes.start, this.time(this.edge) / scale, from, row.boxes.to);
    return [from, to];
  }

  // What is at a place of the canvas: a box, a row, or nothing.
  at(x, y) {
    if (x < 0 || x > this.width || y < AXIS) return null;
    for (const { panel, place, top } of this.seen()) {
      const high = this.y(top);
      if (y < high || y >= high + this.rowHeight) continue;
      const row = panel.rows[place];
      if (x < this.left || x > this.edge) return { panel, row, box: -1 };
      const time = this.time(x) / panel.scale;
      const after = firstAbove(panel.boxes.end, time, row.boxes.from, row.boxes.to);
      const hit = after < row.boxes.to && panel.boxes.start[after] <= time && this.visible(panel, after);
      return { panel, row, box: hit ? after : -1 };
    }
    return null;
  }

  visible(panel, box) {
    return !this.hidden.has(panel.boxes.op[box]);
  }

  rectangle(panel, box) {
    const x = this.x(panel.begins(box));
    return {
      x,
      y: this.y(panel.rowTop[panel.rowOf[box]]),
      width: Math.max(1, this.x(panel.stops(box)) - x),
      height: this.rowHeight - (this.rowHeight > 6 ? 3 : 0),
    };
  }

  // Round times about a hundred pixels apart.
  ticks() {
    const rough = this.perPixel * 90;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
    const found = [];
    for (let tick = Math.max(0, Math.ceil(this.from / step)); tick * step <= this.time(this.edge); tick++) found.push(tick * step);
    return found;
  }
}
