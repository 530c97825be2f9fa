// The head of the page, and its switches.

export function make(tag, text = '', parent = null) {
  const element = document.createElement(tag);
  element.textContent = text;
  parent?.append(element);
  return element;
}

// What the schedules are, with their figures and what is wrong with them.
export function fillHead(panels) {
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

// Switches for what the scene shows; each calls ``redraw``, or ``regroup`` where the rows move.
export function makeSwitches(scene, redraw, regroup) {
  const { panels, page } = scene;
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
      if (box.checked) scene.hidden.delete(number);
      else scene.hidden.add(number);
      redraw();
    });
    const swatch = make('span', '', label);
    swatch.className = 'swatch';
    swatch.style.background = op.fill;
    make('span', op.name, label);
  });
  for (const name of ['transfers', 'memory']) {
    document.getElementById(name).addEventListener('change', (event) => {
      scene.show[name] = event.target.checked;
      redraw();
    });
  }
  const grouping = document.getElementById('grouping');
  grouping.value = page.grouping;
  grouping.addEventListener('change', () => {
    scene.grouping = grouping.value;
    regroup();
  });
}
