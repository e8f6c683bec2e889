#!/usr/bin/env bash
# Lightning 2.6.6: a run that resumes from a checkpoint after the last batch of an epoch trains nothing in the next epoch.
#
# A Trainer with a StatefulDataLoader (torchdata 0.11.0) of 4 batches saves a checkpoint after each second batch.
# A new Trainer resumes from the checkpoint after batch 4, the last batch of the first of 3 epochs.
# Expected: the two remaining epochs, 8 batches, as with torch's DataLoader and from a checkpoint inside an epoch.
# Seen: 4 batches. Lightning loads the state of the finished epoch into the loader of the second epoch, which yields none.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 torchdata==0.11.0 lightning==2.6.6 numpy==2.4.6
cat > "$folder/show.py" <<'EOF'
import sys
import warnings

import lightning
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

BATCHES, EPOCHS = 4, 3


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def training_step(self, batch, number):
        self.seen.append(int(batch))
        return self.layer(torch.ones(1)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(kind, checkpoint=None):
    save = lightning.pytorch.callbacks.ModelCheckpoint(".", kind.__name__ + "-{step}", every_n_train_steps=2, save_top_k=-1)
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(max_epochs=EPOCHS, callbacks=[save] if checkpoint is None else [], **options)
    model = Model()
    trainer.fit(model, kind(list(range(BATCHES)), batch_size=None), ckpt_path=checkpoint, weights_only=False)
    return model.seen


warnings.simplefilter("ignore")
print("lightning", lightning.__version__, "torch", torch.__version__.partition("+")[0])
seen = {}
for kind in (DataLoader, StatefulDataLoader):
    whole = fit(kind)
    for step in (2, 4):
        seen[kind.__name__, step] = fit(kind, f"{kind.__name__}-step={step}.ckpt")
        print(f"{kind.__name__}, checkpoint after batch {step}: {len(whole) - step} remain, {len(seen[kind.__name__, step])} seen")
rest = list(range(BATCHES)) * EPOCHS
described = seen["DataLoader", 4] == rest[4:] and seen["StatefulDataLoader", 2] == rest[2:]
sys.exit(0 if described and seen["StatefulDataLoader", 4] == rest[8:] else "The behavior has changed.")
EOF
cd "$folder"
venv/bin/python show.py 2> errors || { cat errors; exit 1; }
