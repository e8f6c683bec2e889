"""Train with two worker processes, and validate between epochs: `python examples/workers.py`."""

import torch

from digits import torch_accuracy, torch_model, training_digits
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService


def main() -> None:
    torch.manual_seed(0)
    model = torch_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    # With a GPU, end the pipeline with `.pin_memory()` and copy with `images.to("cuda", non_blocking=True)`.
    pipe = training_digits(batch_size=32)
    # `with` stops the workers at the end of the block, also after an exception.
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(num_workers=2)) as loader:
        for epoch in range(5):
            for images, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: {torch_accuracy(model):.1%} of the test digits")


if __name__ == "__main__":
    main()
