"""What goes wrong in this field, and for each rule the tests that fail where it is broken."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

RULES = """
1. one BOS at most, one terminator per completion
    data/test_render.py::test_one_terminator_and_one_start
    properties/test_texts.py::test_one_start_and_one_terminator
2. padding is masked by length, never by id; eos is trained
    model/test_heads.py::test_a_batch_scores_as_its_rows_alone
    model/test_batch.py::test_gradients_do_not_depend_on_company_order_or_budget
    model/test_batch.py::test_no_row_sees_another_or_padding
    model/test_load.py::test_a_token_of_the_text_with_the_id_of_padding_is_trained
    model/test_export.py::test_generation_ends_with_the_tokenizers_eos_whatever_the_base_said
    properties/test_lines.py::test_a_row_has_the_numbers_that_it_has_alone
    properties/test_lines.py::test_neither_order_nor_company_nor_padding_matter
3. the first and the last response token are trained
    stages/test_sft.py::test_first_and_last_completion_token_are_trained_and_no_prompt_token
    trainer/test_supervised.py::test_the_number_of_trained_tokens
    properties/test_lines.py::test_the_first_and_the_last_response_token_are_trained
4. labels are shifted in one place
    model/test_batch.py::test_token_log_probs_equal_an_unpadded_row_by_hand
    trainer/test_supervised.py::test_a_step_and_the_validation_on_whole_texts_are_those_of_a_language_model
    properties/test_lines.py::test_the_first_and_the_last_response_token_are_trained
5. a row with nothing to train on is an error with its id
    stages/test_sft.py::test_rows_that_cannot_be_trained_on
    properties/test_tables.py::test_a_row_without_a_token_to_train_on_is_named
6. prompt and response are tokenised apart
    data/test_render.py::test_plain_text_is_start_prompt_completion_eos
    data/test_tokenizer.py::test_every_continuation_decodes_to_itself_alone
    properties/test_texts.py::test_prompt_and_answer_are_tokenised_apart
    properties/test_texts.py::test_ids_are_the_text_and_no_other
7. one template; the tokenizer's fingerprint travels
    stages/test_runner.py::test_tokenizers_must_agree
    data/test_tokenizer.py::test_fingerprint_ignores_layout_and_sees_every_rule
    properties/test_tables.py::test_a_fingerprint_sees_every_token
8. sampled ids are the truth
    rollout/test_transformers_engine.py::test_log_probs_are_the_trainers
    evaluation/test_sampling.py::test_a_row_has_the_text_of_its_own_completion
    stages/test_rank.py::test_scores_are_those_of_the_model_row_by_row
    properties/test_temperature.py::test_what_was_sampled_has_the_trainers_log_probs
9. what happens to a prompt that is too long is explicit and counted
    data/test_render.py::test_too_long_prompts
    stages/test_prepare.py::test_rows_over_the_limit_are_dropped_or_cut_and_counted
    properties/test_texts.py::test_a_prompt_over_the_limit
10. pairs that the cut makes equal are dropped and counted
    data/test_render.py::test_a_pair_that_the_cut_makes_equal_is_dropped
    data/test_assemble.py::test_pairs_made_equal_by_the_cut_are_counted
    properties/test_texts.py::test_a_pair_made_equal_by_the_cut_is_dropped
11. filtering never reorders; an empty prompt is an error with its row
    data/test_corpus.py::test_repeats_are_dropped_and_counted_and_order_is_kept
    data/test_records.py::test_refused_with_the_row
    properties/test_texts.py::test_rows_keep_their_order_and_do_not_see_each_other
    properties/test_texts.py::test_an_empty_prompt_or_answer_is_an_error_with_its_row
12. a truncated response gets no eos; how it is scored is a setting
    trainer/test_online.py::test_a_truncated_sample_gets_no_eos_and_pays_the_penalty
    data/test_render.py::test_a_cut_completion_gets_no_eos
    properties/test_texts.py::test_a_cut_answer_is_a_beginning_without_eos
13. heads come from the seed; a batch scores as its rows alone
    model/test_heads.py::test_heads_come_from_the_seed_alone
    model/test_heads.py::test_a_batch_scores_as_its_rows_alone
    properties/test_lines.py::test_a_row_has_the_numbers_that_it_has_alone
    properties/test_lines.py::test_a_batch_of_one_is_the_row
14. a reward that is no number leaves its sample out, counted
    trainer/test_online.py::test_samples_without_a_reward_are_left_out_and_counted
    trainer/test_online.py::test_too_many_failed_rewards_are_an_error
    algorithms/test_outcome_advantages.py::test_excluded_samples_are_no_part_of_their_group
    stages/test_rank.py::test_scores_that_are_no_numbers_are_left_out_and_counted
    properties/test_advantages.py::test_groups_that_teach_nothing_and_samples_without_a_reward
    properties/test_advantages.py::test_the_best_of_a_group_by_sorting
15. micro-batches change neither loss, gradient nor metrics
    trainer/test_invariance.py::test_every_split_gives_the_minibatch
    trainer/test_invariance.py::test_both_aggregations_and_the_kl_term
    trainer/test_invariance.py::test_a_wrong_normaliser_is_found
    algorithms/test_invariance.py::test_loss_and_gradient_do_not_depend_on_the_microbatches
    properties/test_microbatches.py::test_micro_batches_add_up
    properties/test_microbatches.py::test_a_mean_of_means_is_found
    properties/test_lines.py::test_the_gradient_is_that_of_rows_alone
16. whitening is over the whole batch, also of one or no token
    algorithms/test_advantages.py::test_whitening_in_parts_with_the_batchs_moments
    algorithms/test_advantages.py::test_whitening_of_one_token_or_none_is_zero
    algorithms/test_outcome_advantages.py::test_excluded_samples_are_no_part_of_the_whitening
    trainer/test_online.py::test_ppo_rewards_advantages_and_returns_by_hand
    properties/test_advantages.py::test_whitening_in_shards_with_the_batchs_moments
17. temperature scales all logits alike and nothing else; never zero
    trainer/test_online.py::test_step_one_is_on_policy
    roles/test_roles.py::test_values_do_not_see_the_temperature
    model/test_logits.py::test_equals_float64_autograd
    model/test_logits.py::test_temperature_must_be_positive
    properties/test_temperature.py::test_every_use_of_logits_has_one_temperature
    properties/test_temperature.py::test_no_temperature_of_zero_or_less
18. on-policy, step one: ratio 1, KL 0, the generator's gap is logged, dropout is off
    trainer/test_online.py::test_step_one_logs_ratio_one_no_kl_and_no_gap
    trainer/test_online.py::test_dropout_is_off_for_generator_trainer_reference_and_critic
    algorithms/test_policy_losses.py::test_on_policy_every_gradient_is_that_of_reinforce
    properties/test_temperature.py::test_on_policy_the_ratio_is_one_and_nothing_is_clipped
    properties/test_temperature.py::test_kl_is_zero_at_the_reference_and_its_estimates_are_ordered
    properties/test_temperature.py::test_what_was_sampled_has_the_trainers_log_probs
19. groups of equal rewards give zero, and are counted
    algorithms/test_outcome_advantages.py::test_equal_scores_give_exact_zeros
    trainer/test_online.py::test_equal_groups_teach_nothing_and_are_counted
    properties/test_advantages.py::test_groups_that_teach_nothing_and_samples_without_a_reward
    properties/test_advantages.py::test_the_share_of_flat_groups_by_counting
20. cached reference log-probabilities belong to data, model and tokenizer
    trainer/test_preference.py::test_another_model_or_other_rows_have_another_cache
    properties/test_tables.py::test_a_cache_serves_the_rows_and_the_model_that_it_was_made_from
    properties/test_tables.py::test_equal_digests_are_equal_rows
    properties/test_tables.py::test_a_moved_boundary_is_other_data
21. every counter is state; a missing or unknown key is an error
    trainer/test_resume.py::test_kill_and_restart_give_the_same_bytes
    trainer/test_resume.py::test_missing_and_unknown_keys_are_errors
22. checkpoints are whole or absent; retention survives a restart
    checkpoint/test_store.py::test_killed_at_any_point_of_three_saves
    checkpoint/test_store.py::test_retention_survives_a_restart
    checkpoint/test_publish.py::test_killed_at_any_point
23. data that changed under a resumed run is refused
    trainer/test_resume.py::test_another_seed_or_other_data_do_not_continue_a_checkpoint
24. an exported model reloads and gives the same logits
    model/test_export.py::test_a_model_reads_back_the_same
    model/test_export.py::test_a_reward_model_reads_back_the_same
    model/test_export.py::test_transformers_4_51_reads_the_same
25. unknown, idle and contradicting keys are errors that name the key
    config/test_load.py::test_a_wrong_file_names_key_and_mend
    config/test_load.py::test_keys_that_would_do_nothing
26. a model folder's sampling settings never override the experiment's
    model/test_load.py::test_the_folders_sampling_settings_are_dropped
    model/test_export.py::test_generation_settings_are_token_ids_alone
27. children die with the parent; every wait has a bound
    test_cli.py::test_a_stage_of_the_workflow_ends_with_its_parent_and_with_the_workflow
    runtime/test_device.py::test_a_killed_job_frees_its_devices_and_waiting_ends
    tracking/test_tracker.py::test_an_unreachable_store_kills_nothing_and_is_said_once
28. no library resets the logging; progress in a file is plain lines
    tracking/test_store.py::test_the_logging_of_the_process_is_left_alone
    trainer/test_progress.py::test_lines_in_a_file_every_few_seconds_and_at_the_end
29. nothing to do the second time; a change reruns its descendants only
    workflow/test_reruns.py::test_nothing_to_do_the_second_time_and_the_answer_is_quick
    workflow/test_reruns.py::test_a_coefficient_reruns_its_run_alone
    workflow/test_reruns.py::test_the_source_of_a_loss_reruns_its_method_alone
    workflow/test_reruns.py::test_a_lock_file_reruns_all_that_runs_in_its_environment
30. rules call commands of ours; params are pure data
    workflow/test_rules.py::test_every_rule_is_a_shell_command
    workflow/test_reruns.py::test_params_hold_no_paths_of_this_machine
31. nothing of the host leaks into a container; without one the manifest says so
    workflow/test_container_options.py::test_nothing_of_the_host_gets_in_but_what_is_named
    workflow/test_quick.py::test_in_containers
    workflow/test_quick.py::test_on_the_host
32. a folder is marked by its manifest; a lock says what to type
    workflow/test_rules.py::test_outputs_are_manifests
    checkpoint/test_publish.py::test_killed_at_any_point_under_snakemake
    workflow/test_stops.py::test_after_a_kill_the_lock_is_explained_and_another_configuration_starts_anew
33. DVC's links are read and never written, and bound in the container
    stages/test_pull_data.py::test_read_only_links_are_read_and_not_written
    workflow/test_container_options.py::test_nothing_of_the_host_gets_in_but_what_is_named
34. MLflow: no run stays RUNNING, long params and unsafe names are handled, folders move, eight log at once
    tracking/test_tracker.py::test_kill_9_leaves_killed_and_loses_nothing
    tracking/test_tracker.py::test_one_execution_from_start_to_finish
    tracking/test_metrics_file.py::test_metric_names_are_safe
    tracking/test_tracker.py::test_artifacts_survive_a_move_of_the_project
    tracking/test_tracker.py::test_eight_processes_at_once_lose_nothing
"""


def rules() -> dict[int, list[str]]:
    """Number of each rule -> its tests."""
    found: dict[int, list[str]] = {}
    for line in RULES.strip().splitlines():
        head = re.match(r"(\d+)\. \S", line)
        if head:
            tests = found.setdefault(int(head[1]), [])
        else:
            tests.append(line.strip())
    return found


def functions(path: Path) -> set[str]:
    """The names of a file's functions."""
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_rule_has_a_test() -> None:
    assert list(rules()) == list(range(1, 35))
    assert all(rules().values())


@pytest.mark.parametrize("name", sorted({name for names in rules().values() for name in names}))
def test_it_exists(name: str) -> None:
    file, _, test = name.partition("::")
    assert test.startswith("test_") and test in functions(TESTS / file)
