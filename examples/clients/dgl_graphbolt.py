"""DGL's GraphBolt on this package: its own pipes sample minibatches of a graph. See docs/guides/old-clients.md."""

import dgl.graphbolt as gb
import torch

NODES = 50


def loader(workers: int) -> gb.DataLoader:
    """Returns a loader over a random graph with features. For each node, the loader samples two layers of neighbors."""
    torch.manual_seed(0)
    edges_end = torch.arange(0, 5 * NODES + 1, 5)
    graph = gb.fused_csc_sampling_graph(edges_end, torch.randint(0, NODES, (5 * NODES,)))
    feature = gb.TorchBasedFeature(torch.arange(2.0 * NODES).reshape(NODES, 2))
    features = gb.BasicFeatureStore({("node", None, "feat"): feature})
    pipe = gb.ItemSampler(gb.ItemSet(torch.arange(NODES), names="seed_nodes"), batch_size=8, shuffle=True)
    pipe = gb.NeighborSampler(pipe, graph, [2, 2])
    pipe = gb.FeatureFetcher(pipe, features, node_feature_keys=["feat"])
    return gb.DataLoader(gb.CopyTo(pipe, "cpu"), num_workers=workers)


def main() -> None:
    for workers in (0, 2):
        batches = list(loader(workers))
        seen = sorted(node for batch in batches for node in batch.seed_nodes.tolist())
        print(f"{workers} workers: {len(batches)} batches, each node once: {seen == list(range(NODES))}")


if __name__ == "__main__":
    main()
