// What is drawn beside the boxes: dead rows, memory, transfers, ends of iterations, margins, and what is lit.

Object.assign(Painter.prototype, {
  // Round times about a hundred pixels apart.
  ticks() {
    const rough = this.perPixel * 90;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
    const found = [];
    for (let tick = Math.max(0, Math.ceil(this.from / step)); tick * step <= this.time(this.edge); tick++) found.push(tick * step);
    return found;
  },

  axis(pen) {
    pen.fillStyle = this.theme.ground;
    pen.fillRect(0, 0, this.width, AXIS);
    pen.fillStyle = this.theme.dim;
    pen.font = '11px "DejaVu Sans", Verdana, sans-serif';
    pen.textBaseline = 'middle';
    pen.textAlign = 'left';
    pen.fillText(this.page.unit, 10, AXIS / 2);
    pen.textAlign = 'center';
    for (const tick of this.ticks()) pen.fillText(short(tick), this.x(tick), AXIS / 2);
    if (this.right) {
      pen.textAlign = 'right';
      ['busy', 'bubble', 'memory'].forEach((name, place) => pen.fillText(name, this.edge + 42 + 50 * place, AXIS / 2));
    }
    pen.fillStyle = this.theme.rule;
    pen.fillRect(0, AXIS - 1, this.width, 1);
  },

  margins(pen, lines) {
    pen.fillStyle = this.theme.ground;
    pen.fillRect(0, AXIS, this.left, this.height);
    pen.fillRect(this.edge, AXIS, this.right, this.height);
    pen.textBaseline = 'middle';
    const font = Math.min(11, this.rowHeight - 2);
    for (const { panel, place, top } of lines) {
      const row = panel.rows[place];
      const middle = this.y(top) + (this.rowHeight - (this.rowHeight > 6 ? 3 : 0)) / 2;
      if (row.dead) {
        pen.fillStyle = this.theme.dead;
        pen.fillRect(0, this.y(top), 6, Math.max(2, this.rowHeight - 1));
      }
      if (this.rowHeight < 9) continue;
      pen.font = `bold ${font}px "DejaVu Sans", Verdana, sans-serif`;
      pen.fillStyle = row.dead ? this.theme.dead : this.theme.ink;
      pen.textAlign = 'left';
      pen.fillText(row.label, 12, middle);
      if (row.dead) pen.fillRect(12, middle, pen.measureText(row.label).width, 1.2);
      if (!this.right || row.dead) continue;
      pen.textAlign = 'right';
      pen.font = `${font}px "DejaVu Sans", Verdana, sans-serif`;
      const memory = row.peak === null ? '' : row.limit === null ? `${row.peak}` : `${row.peak}/${row.limit}`;
      [row.busy, row.bubble, memory].forEach((text, column) => pen.fillText(text, this.edge + 42 + 50 * column, middle));
    }
    this.names(pen);
  },

  names(pen) {
    pen.textAlign = 'left';
    for (const { group, top, bottom } of this.groups) {
      if (this.y(bottom) < AXIS || this.y(top) > this.height) continue;
      pen.fillStyle = this.theme.dim;
      pen.font = '10.5px "DejaVu Sans", Verdana, sans-serif';
      const inside = this.rowHeight < 9;
      if (inside && bottom - top < 10) continue;
      pen.fillText(`${this.grouping} ${group}`, 12, inside ? Math.max(AXIS + 8, this.y((top + bottom) / 2)) : this.y(top) - 8);
      if (inside) pen.fillRect(this.left - 4, this.y(top), 2, bottom - top);
    }
    if (this.panels.length < 2) return;
    for (const panel of this.panels) {
      pen.fillStyle = this.theme.ground;
      pen.fillRect(0, this.y(panel.top), this.width, 19);
      pen.fillStyle = this.theme.ink;
      pen.font = 'bold 12px "DejaVu Sans", Verdana, sans-serif';
      pen.fillText(`${panel.name}: ${panel.title}`, 12, this.y(panel.top) + 11);
    }
  },

  // Where a server is dead: a line through its row, with a cross where it died on the way and a flag where it came back.
  outages(pen, { panel, place, top }) {
    const row = panel.rows[place];
    const y = this.y(top);
    const height = Math.max(2, this.rowHeight - (this.rowHeight > 6 ? 3 : 0));
    const middle = y + Math.max(1, this.rowHeight - 3) / 2;
    for (const [start, end, text] of row.outages) {
      const from = start === null ? this.left : this.x(start * panel.scale);
      const to = end === null ? this.edge : this.x(end * panel.scale);
      if (to < this.left || from > this.edge) continue;
      if (start !== null) {
        pen.fillStyle = this.theme.ground;
        pen.fillRect(from, y, to - from, height);
      }
      pen.fillStyle = this.theme.dead;
      pen.fillRect(from, middle - 0.75, to - from, 1.5);
      if (this.rowHeight >= 15) this.pill(pen, Math.max(this.left, from) + 12, Math.min(this.edge, to), y, middle, text);
      if (start !== null) this.cross(pen, from - height / 3, middle - height / 3, height / 1.5, height / 1.5, this.theme.dead);
      if (end !== null) this.flag(pen, to, y, height);
    }
  },

  // A text on a line, if there is room for some of it.
  pill(pen, from, to, y, middle, text) {
    pen.font = 'bold 11px "DejaVu Sans", Verdana, sans-serif';
    pen.textAlign = 'left';
    pen.textBaseline = 'middle';
    const full = pen.measureText(text).width + 20;
    const width = Math.min(full, to - from - 8);
    if (width < Math.min(full, 90)) return;
    pen.fillStyle = this.theme.ground;
    pen.strokeStyle = this.theme.dead;
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.roundRect(from, y + 1, width, this.rowHeight - 5, 9);
    pen.fill();
    pen.stroke();
    pen.fillStyle = this.theme.dead;
    pen.fillText(text, from + 10, middle + 0.5, width - 20);
  },

  flag(pen, x, y, height) {
    pen.fillStyle = this.theme.back;
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(x + Math.max(3, height / 2), y + height / 2);
    pen.lineTo(x, y + height);
    pen.fill();
  },

  // Where a server changes views: a band from when it knew to its first instruction.
  pauses(pen, { panel, place, top }) {
    pen.fillStyle = this.theme.pause;
    for (const [start, end] of panel.rows[place].pauses) {
      const x = this.x(start * panel.scale);
      pen.fillRect(x, this.y(top), Math.max(1, this.x(end * panel.scale) - x), Math.max(1, this.rowHeight - (this.rowHeight > 6 ? 3 : 0)));
    }
  },

  // Where views begin: a line over all rows of a panel.
  views(pen) {
    pen.fillStyle = this.theme.ink;
    for (const panel of this.panels) {
      for (const [time] of panel.views) {
        pen.fillRect(this.x(time * panel.scale) - 0.75, this.y(panel.first), 1.5, panel.bottom - panel.first);
      }
    }
  },

  // The names of views stand at their lines, as many as there is room for.
  viewNames(pen) {
    pen.font = 'bold 10.5px "DejaVu Sans", Verdana, sans-serif';
    pen.textAlign = 'left';
    pen.textBaseline = 'middle';
    for (const panel of this.panels) {
      let free = this.left;
      const y = Math.max(AXIS, this.y(panel.first)) + 8;
      if (y > this.y(panel.bottom)) continue;
      for (const [time, name] of panel.views) {
        const x = this.x(time * panel.scale) + 3;
        const width = pen.measureText(name).width;
        if (x < free || x + width > this.edge) continue;
        pen.fillStyle = this.theme.ground;
        pen.fillRect(x - 1, y - 7, width + 4, 14);
        pen.fillStyle = this.theme.ink;
        pen.fillText(name, x + 1, y);
        free = x + width + 4;
      }
    }
  },

  // The memory a server holds, as a line over its row: the top of the row is its limit.
  memory(pen, { panel, place, top }) {
    const row = panel.rows[place];
    const { time, memory } = panel.samples;
    const most = row.limit ?? panel.mostMemory;
    const height = this.rowHeight - 3;
    const low = this.y(top) + height;
    const from = Math.max(row.samples.from, firstAbove(time, this.from / panel.scale, row.samples.from, row.samples.to) - 1);
    const to = firstAbove(time, this.time(this.edge) / panel.scale, from, row.samples.to);
    let level = low;
    pen.beginPath();
    pen.moveTo(this.x((from < to ? time[from] : 0) * panel.scale), low);
    for (let sample = from; sample < to; sample++) {
      const x = this.x(time[sample] * panel.scale);
      pen.lineTo(x, level);
      level = low - (height * memory[sample]) / most;
      pen.lineTo(x, level);
    }
    pen.strokeStyle = this.theme.lit;
    pen.lineWidth = this.rowHeight > 12 ? 1.6 : 0.8;
    pen.stroke();
  },

  // Transfers as lines from the end of what makes a result to the start of what needs it, on another server.
  transfers(pen, { panel, place, top }, [from, to]) {
    const row = panel.rows[place];
    const { start, end } = panel.transfers;
    pen.fillStyle = this.theme.dim;
    const first = firstAbove(end, this.from / panel.scale, row.transfers.from, row.transfers.to);
    for (let each = first; each < row.transfers.to && start[each] * panel.scale < this.time(this.edge); each++) {
      const x = this.x(start[each] * panel.scale);
      pen.fillRect(x, this.y(top) + this.rowHeight - 3, Math.max(1, this.x(end[each] * panel.scale) - x), 2);
    }
    if (this.crowded) return;
    pen.strokeStyle = this.theme.dim;
    pen.lineWidth = 0.8;
    for (let box = from; box < to; box++) {
      for (const need of panel.needs(box)) {
        if (panel.rowOf[need] !== panel.rowOf[box] && this.visible(panel, box)) this.link(pen, panel, need, box);
      }
    }
  },

  link(pen, panel, one, other) {
    const start = this.rectangle(panel, one);
    const stop = this.rectangle(panel, other);
    pen.beginPath();
    pen.moveTo(start.x + start.width - 1, start.y + start.height / 2);
    pen.lineTo(stop.x + 1, stop.y + stop.height / 2);
    pen.stroke();
  },

  // Where iterations end: a line behind a barrier, and a step per stage where the optimizer is staggered.
  boundaries(pen) {
    pen.strokeStyle = this.theme.boundary;
    pen.lineWidth = 1.5;
    pen.setLineDash([5, 3]);
    for (const { panel, group, top, bottom } of this.groups) {
      const byStage = this.grouping === 'stage';
      if (!byStage && !panel.barrier) continue;
      const before = this.groups.find((each) => each.panel === panel && each.group === group - 1);
      (panel.ends[byStage ? group : 0] ?? []).forEach((end, iteration) => {
        const x = this.x(end * panel.scale);
        const last = byStage && before ? panel.ends[group - 1]?.[iteration] : undefined;
        pen.beginPath();
        if (last !== undefined) pen.moveTo(this.x(last * panel.scale), this.y(before.bottom));
        pen.lineTo(x, this.y(before ? before.bottom : top));
        pen.lineTo(x, this.y(bottom));
        pen.stroke();
      });
    }
    pen.setLineDash([]);
  },

  // How long each stage takes for each iteration, above its rows, where there is room between the groups.
  windows(pen) {
    if (this.gap(this.rowHeight) < 14) return;
    pen.strokeStyle = pen.fillStyle = this.theme.dim;
    pen.lineWidth = 1;
    pen.font = '10.5px "DejaVu Sans", Verdana, sans-serif';
    pen.textAlign = 'center';
    pen.textBaseline = 'middle';
    for (const { panel, group, top } of this.groups) {
      const y = this.y(top) - 8;
      if (panel.barrier || y < AXIS || y > this.height) continue;
      for (const [start, end, caption] of panel.turns[group] ?? []) {
        const from = this.x(start * panel.scale) + 0.5;
        const to = this.x(end * panel.scale) - 0.5;
        const seen = [Math.max(from, this.left), Math.min(to, this.edge)];
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
  },

  // What is lit, over all the rest: the pointed box with what it waits for and who waits for it, and a followed micro-batch.
  light(focus, followed) {
    const pen = this.over;
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    pen.save();
    this.clip(pen);
    if (followed.length) {
      pen.globalAlpha = 0.72;
      pen.fillStyle = this.theme.ground;
      for (const { first, bottom } of this.panels) pen.fillRect(this.left, this.y(first), this.width, bottom - first);
      pen.globalAlpha = 1;
    }
    for (const { panel, boxes } of followed) {
      pen.strokeStyle = this.theme.lit;
      for (const box of boxes) {
        pen.lineWidth = 1.2;
        for (const need of panel.needs(box)) this.link(pen, panel, need, box);
      }
      for (const box of boxes) this.box(pen, panel, box);
    }
    if (focus) {
      const { panel, box } = focus;
      pen.strokeStyle = this.theme.lit;
      for (const need of panel.needs(box)) this.lit(pen, panel, need, box, need, [4, 3]);
      for (const other of panel.awaited(box)) this.lit(pen, panel, box, other, other, []);
      this.frame(pen, panel, box, 3);
    }
    pen.restore();
  },

  lit(pen, panel, one, other, framed, dash) {
    pen.lineWidth = 1.4;
    pen.setLineDash(dash);
    this.link(pen, panel, one, other);
    this.frame(pen, panel, framed, 2);
    pen.setLineDash([]);
  },

  frame(pen, panel, box, width) {
    const { x, y, width: wide, height } = this.rectangle(panel, box);
    pen.lineWidth = width;
    pen.strokeStyle = this.theme.lit;
    pen.strokeRect(x - 1, y - 1, wide + 1, height + 2);
  },
});

// A time without needless digits.
function short(time) {
  return String(Number(time.toPrecision(6)));
}
