"""Train on several ranks, each with workers: `torchrun --nproc-per-node 2 examples/ranks_torchrun.py`."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from digits import torch_accuracy, torch_model, training_digits
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)


def main() -> None:
    dist.init_process_group("gloo")  # "nccl" with GPUs; the loader's own groups always use gloo
    torch.manual_seed(0)
    model = DistributedDataParallel(torch_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    # Divides the items among the ranks, and then among each rank's workers. All ranks run the same number of steps.
    service = SequentialReadingService(
        DistributedReadingService(timeout=60), MultiProcessingReadingService(num_workers=1)
    )
    with DataLoader2(training_digits(batch_size=16), reading_service=service) as loader:
        for epoch in range(5):
            steps = 0
            for images, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps += 1
            if dist.get_rank() == 0:
                accuracy = torch_accuracy(model.module)
                print(f"epoch {epoch}: {steps} steps on each rank, {accuracy:.1%} of the test digits", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
