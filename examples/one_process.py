"""Train in one process, without workers: `python examples/one_process.py`."""

import torch

from digits import torch_accuracy, torch_model, training_digits
from torchdata.dataloader2 import DataLoader2


def main() -> None:
    torch.manual_seed(0)
    model = torch_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader2(training_digits(batch_size=32))
    for epoch in range(5):
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {torch_accuracy(model):.1%} of the test digits")


if __name__ == "__main__":
    main()
