"""The objectives beside eq. 7 with plain loops."""

import torch


def sigma(x):
    return 1 / (1 + torch.exp(-x))


# The reference: one trajectory, one token at a time. A trajectory is a list of turns, a turn a list of
# (log pi_theta, log pi_ref) of its tokens.


def split(side, pair):
    """The turns of one trajectory."""
    found, before = [], False
    for policy, reference, acted in zip(side.policy[pair], side.reference[pair], side.action_mask[pair], strict=True):
        if acted and not before:
            found.append([])
        if acted:
            found[-1].append((policy, reference))
        before = bool(acted)
    return found


def tokens(trajectory):
    return [token for turn in trajectory for token in turn]


def ratio(turn):
    return sum(policy - reference for policy, reference in turn)


def mean_ratio(trajectory):
    return ratio(tokens(trajectory)) / len(tokens(trajectory))


def reference_dpo(chosen, rejected, beta):
    return -torch.log(sigma(beta * (ratio(tokens(chosen)) - ratio(tokens(rejected)))))


def reference_dpo_length(chosen, rejected, beta):
    return -torch.log(sigma(beta * mean_ratio(chosen) - beta * mean_ratio(rejected)))


def reference_dmpo(chosen, rejected, beta, discount):
    def discounted(trajectory):
        # Shi et al. normalise the discounted sum of occupancy terms: phi(t, T) is the share of the discounted steps
        # that come at t or later, sum_{k=t}^{T-1} gamma^k / sum_{k=0}^{T-1} gamma^k.
        steps = len(trajectory)
        whole = sum(discount**k for k in range(steps))
        return sum(sum(discount**k for k in range(t, steps)) / whole * ratio(trajectory[t]) for t in range(steps))

    return -torch.log(sigma(beta * discounted(chosen) - beta * discounted(rejected)))


def reference_simpo(chosen, rejected, beta, margin):
    def mean(trajectory):
        return sum(policy for policy, _ in tokens(trajectory)) / len(tokens(trajectory))

    return -torch.log(sigma(beta * mean(chosen) - beta * mean(rejected) - margin))


def reference_ipo(chosen, rejected, beta):
    return (mean_ratio(chosen) - mean_ratio(rejected) - 1 / (2 * beta)) ** 2


def reference_kto(chosen, rejected, beta, desirable, undesirable, z_chosen, z_rejected):
    gain = desirable * sigma(beta * (ratio(tokens(chosen)) - z_chosen))
    pain = undesirable * sigma(beta * (z_rejected - ratio(tokens(rejected))))
    return (desirable - gain + undesirable - pain) / 2


def reference_losses(name, chosen, rejected, beta, parameters):
    """Of the objective `name`, [P]."""
    trajectories = [(split(chosen, pair), split(rejected, pair)) for pair in range(len(chosen.policy))]
    if name == "kto":
        means = [sum(ratio(tokens(pair[side])).item() for pair in trajectories) / len(trajectories) for side in (0, 1)]
        parameters = {**parameters, "z_chosen": max(0.0, means[1]), "z_rejected": max(0.0, means[0])}
    return torch.stack([globals()[f"reference_{name}"](*pair, beta, **parameters) for pair in trajectories])
