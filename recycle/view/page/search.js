// Search: a server such as W1_2, an instruction such as 2F1.3, or a micro-batch such as 1.3.

// What a text names: the panel and the row, the box, or the micro-batch to follow; null if there is no such thing.
export function search(scene, text) {
  const wanted = text.trim();
  const server = /^w?(\d+)_(\d+)$/i.exec(wanted);
  if (server) return findServer(scene, Number(server[1]), Number(server[2]));
  const unit = /^(?:(\d+)([a-z_]+))?(\d+)\.(\d+)$/i.exec(wanted);
  if (!unit) return null;
  const [stage, op, home, microBatch] = [unit[1], unit[2]?.toUpperCase(), Number(unit[3]), Number(unit[4])];
  for (const panel of scene.panels) {
    const box = findBox(panel, stage === undefined ? null : Number(stage), op, home, microBatch);
    if (box < 0) continue;
    const found = { panel, box };
    if (stage === undefined) found.follow = { iteration: panel.boxes.iteration[box], home, microBatch };
    return found;
  }
  return null;
}

function findServer(scene, pipeline, stage) {
  for (const panel of scene.panels) {
    const place = panel.rows.findIndex((row) => row.pipeline === pipeline && row.stage === stage);
    if (place >= 0) return { panel, place, box: -1 };
  }
  return null;
}

// The first box in time of a micro-batch, of one op at one stage if they are given.
function findBox(panel, stage, name, home, microBatch) {
  const { boxes, ops } = panel;
  let best = -1;
  for (let box = 0; box < boxes.op.length; box++) {
    if (boxes.microBatch[box] !== microBatch || boxes.home[box] !== home) continue;
    if (stage !== null && (panel.stage(box) !== stage || ops[boxes.op[box]].name !== name)) continue;
    if (best < 0 || boxes.start[box] < boxes.start[best]) best = box;
  }
  return best;
}
